# Datetimes of many microseconds at once: Python's own arithmetic takes a microsecond for each.

cdef enum:
    DAYS_TO_1970 = 719468  # from the 1st of March of the year 0


cdef inline bint in_years(int64_t time_us) noexcept:
    """Whether Python has a datetime for it: years 1 to 9999."""
    return -62135596800000000 <= time_us < 253402300800000000


cdef object instant(int64_t time_us, object zone):
    """The datetime `time_us` microseconds after 1970, which `in_years` has allowed.

    Days become a date in eras of 400 years that begin in March, so that a leap day comes last.
    """
    cdef int64_t days = time_us // 86400000000
    cdef int64_t in_day = time_us - days * 86400000000
    days += DAYS_TO_1970
    cdef int64_t era = days // 146097
    cdef int64_t of_era = days - era * 146097
    cdef int64_t year = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    cdef int64_t of_year = of_era - (365 * year + year // 4 - year // 100)
    cdef int64_t month = (5 * of_year + 2) // 153  # from March on
    cdef int64_t day = of_year - (153 * month + 2) // 5 + 1
    cdef int64_t second = in_day // 1000000
    month = month + 3 if month < 10 else month - 9
    return cdt.datetime_new(
        <int> (year + era * 400 + (month <= 2)), <int> month, <int> day, <int> (second // 3600),
        <int> (second // 60 % 60), <int> (second % 60), <int> (in_day % 1000000), zone)


def instants(size_t address, size_t validity, Py_ssize_t offset, Py_ssize_t length, bint naive):
    """Return the datetimes of an Arrow array of microseconds as a list, None for null.

    Raises
    ------
    OverflowError
        One is outside the years 1 to 9999; it is the error's argument.
    """
    cdef const int64_t *times = <const int64_t *> address
    cdef const uint8_t *valid = <const uint8_t *> validity
    cdef object zone = None if naive else UTC
    cdef list result = [None] * length
    cdef Py_ssize_t i, at
    for i in range(length):
        at = offset + i
        if valid is not NULL and not valid[at >> 3] >> (at & 7) & 1:
            continue
        if not in_years(times[at]):
            raise OverflowError(times[at])
        result[i] = instant(times[at], zone)
    return result
