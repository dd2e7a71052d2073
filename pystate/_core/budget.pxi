# One memory limit for the tables and buffers of a process, and the shared tables of its host.

cdef class Budget:
    """What a process may take. Tables and files keep the core's part of it alive."""

    cdef pst_budget *b

    def __cinit__(self, uint64_t limit_bytes):
        check(pst_budget_create(limit_bytes, &self.b), NULL, "memory limit", None)

    def __dealloc__(self):
        pst_budget_release(self.b)

    def stats(self):
        """Return the limit, and what is charged and counted: private and shared bytes."""
        cdef pst_budget_stats s
        pst_budget_get_stats(self.b, &s)
        return s.limit_bytes, s.private_bytes, s.shared_bytes


cdef pst_budget *budget_of(Budget budget) noexcept:
    return NULL if budget is None else budget.b


cdef object limit_error(str where, const pst_refusal *r):
    """The error for a PST_LIMIT."""
    if r.own == 2:
        return errors.MemoryLimitError(
            f"{where}: {size_text(r.asked_bytes)} more would pass the table's share of its host's "
            f"memory: it has {size_text(r.private_bytes)} of {size_text(r.limit_bytes)}; raise "
            "PYSTATE_MEMORY_LIMIT_BYTES in the environment, or use fewer ranges or more hosts")
    if r.own:
        return errors.MemoryLimitError(
            f"{where}: {size_text(r.asked_bytes)} more would pass the table's own limit: it has "
            f"{size_text(r.private_bytes)} of {size_text(r.limit_bytes)}; raise limit_bytes (of a "
            "Job: memory_limit_bytes) or use more ranges")
    return errors.MemoryLimitError(
        f"{where}: {size_text(r.asked_bytes)} more would pass the memory limit of "
        f"{size_text(r.limit_bytes)}: this process has {size_text(r.private_bytes)} in heap tables "
        f"and buffers, and shared tables of this host take {size_text(r.shared_bytes)}; raise "
        "PYSTATE_MEMORY_LIMIT_BYTES in the environment, give the table limit_bytes of its own (a "
        "Job: memory_limit_bytes), or use more ranges on more hosts")


cdef int check_limit(pst_status status, Budget budget, str where) except -1:
    """Raise if the budget refused."""
    cdef pst_refusal refusal
    if status == PST_LIMIT and budget is not None:
        pst_budget_refusal(budget.b, &refusal)
        raise limit_error(where, &refusal)
    return 0


cdef str size_text(uint64_t size):
    if size < 1 << 20:
        return f"{size / 1024:.1f} KiB"
    return f"{size / (1 << 20):.1f} MiB"
