# Small structures of the header, filled from Python objects.

cdef pst_record *new_record() except NULL:
    cdef pst_record *record = <pst_record *> malloc(sizeof(pst_record))
    if record is NULL:
        raise MemoryError
    return record


cdef int fill_mapping(int32_t *mapping, list columns, int32_t n) except -1:
    cdef int32_t i
    if n > PST_MAX_STATES:
        raise errors.InvalidArgumentError(f"{n} columns")
    for i in range(n):
        mapping[i] = columns[i]  # an IndexError where __index__ of one took others out
    return 0


cdef int fill_lineage(pst_lineage *lineage, bytes id, bytes parent, uint64_t epoch,
                      uint64_t query) except -1:
    if id is None or parent is None:
        raise errors.InvalidArgumentError("a lineage's ids are bytes, not None")
    if len(id) != 16 or len(parent) != 16:
        raise errors.InvalidArgumentError("a lineage's ids have 16 bytes")
    memcpy(lineage.id, PyBytes_AS_STRING(id), 16)
    memcpy(lineage.parent, PyBytes_AS_STRING(parent), 16)
    lineage.epoch = epoch
    lineage.query = query
    return 0


cdef object lineage_tuple(const pst_lineage *lineage):
    return (PyBytes_FromStringAndSize(<const char *> lineage.id, 16),
            PyBytes_FromStringAndSize(<const char *> lineage.parent, 16),
            lineage.epoch, lineage.query)


cdef int fill_identity(pst_identity *who, object identity) except -1:
    cdef bytes boot_id = bytes(identity.boot_id)
    cdef bytes application = bytes(identity.application)
    if len(boot_id) != 16 or len(application) != 32:
        raise errors.InvalidArgumentError(
            "an identity has a boot_id of 16 bytes and an application of 32")
    memcpy(who.boot_id, PyBytes_AS_STRING(boot_id), 16)
    memcpy(who.application, PyBytes_AS_STRING(application), 32)
    who.pid_namespace = identity.pid_namespace
    who.owner_pid = identity.owner_pid
    who.owner_start = identity.owner_start
    return 0
