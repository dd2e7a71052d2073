#include "reads/read.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/mem.h"

/* Of calls in a row that bring nothing, and of reads of what was dropped meanwhile: more are no
 * accident. */
enum { MOST_STALLS = 128, MOST_DROPS = 64 };

pst_status pst_read_file_open(pst_read_file *f, const char *path, uint64_t *size, int *sys_errno) {
    struct stat st;
    *f = (pst_read_file){.fd = -1};
    do
        f->fd = open(path, O_RDONLY | O_CLOEXEC);
    while (f->fd < 0 && errno == EINTR);
    if (f->fd < 0 || fstat(f->fd, &st)) {
        *sys_errno = errno;
        pst_read_file_close(f);
        return *sys_errno == ENOENT ? PST_NOT_FOUND : PST_IO;
    }
    *size = (uint64_t)st.st_size;
    return PST_OK;
}

static void run_calls(pst_read *r) {
    for (;;) {
        ssize_t n =
            pread(r->file->fd, r->data + r->got, r->size - r->got, (off_t)(r->offset + r->got));
        if (pst_read_take(r, n < 0 ? -errno : n))
            return;
    }
}

int pst_read_cached(pst_read *r) {
#ifdef RWF_NOWAIT
    if (r->file->direct || r->file->extents)
        return 0;
    struct iovec part = {r->data, r->size};
    ssize_t n = preadv2(r->file->fd, &part, 1, (off_t)r->offset, RWF_NOWAIT);
    r->got = n > 0 ? (size_t)n : 0;
    return r->got >= r->need;
#else
    (void)r;
    return 0;
#endif
}

void pst_read_file_random(const pst_read_file *f) {
    (void)posix_fadvise(f->fd, 0, 0, POSIX_FADV_RANDOM);
}

void pst_read_file_direct(pst_read_file *f) {
#ifdef O_DIRECT
    int flags = fcntl(f->fd, F_GETFL);
    pst_read_file_drop(f, 0);
    if (flags >= 0 && fcntl(f->fd, F_SETFL, flags | O_DIRECT) == 0) {
        _Alignas(PST_READ_ALIGN) uint8_t page[PST_READ_ALIGN];
        /* Some file systems take the flag and refuse the reads. */
        pst_read trial = {.file = f, .data = page, .size = PST_READ_ALIGN, .need = 1};
        f->direct = 1;
        run_calls(&trial);
        if (!trial.error)
            return;
        f->direct = 0;
        (void)fcntl(f->fd, F_SETFL, flags);
    }
#endif
    pst_read_file_random(f);
}

void pst_read_file_drop(pst_read_file *f, uint64_t bytes) {
    if (f->direct || f->cached < bytes)
        return;
    (void)posix_fadvise(f->fd, 0, 0, POSIX_FADV_DONTNEED);
    f->cached = 0;
}

void pst_read_file_ahead(const pst_read_file *f, uint64_t offset, uint64_t size) {
    if (!f->direct)
        (void)posix_fadvise(f->fd, (off_t)offset, (off_t)size, POSIX_FADV_WILLNEED);
}

void pst_read_file_close(pst_read_file *f) {
    if (f->fd >= 0)
        close(f->fd);
    f->fd = -1;
}

int pst_read_take(pst_read *r, int64_t result) {
    size_t before = r->got;
#ifdef PST_TEST_READS
    if (pst_read_hook)
        result = pst_read_hook(r, result);
#endif
    if (result == 0) {
        r->error = ENODATA;
    } else if (result < 0) {
        r->error = result == -EINTR || result == -EAGAIN ? 0 : (int)-result;
    } else {
        r->got += (size_t)result < r->size - r->got ? (size_t)result : r->size - r->got;
        if (r->got < r->need)
            r->got &= ~(size_t)(PST_READ_ALIGN - 1);
    }
    r->stalls = r->got > before ? 0 : r->stalls + 1;
    if (r->stalls > MOST_STALLS && !r->error)
        r->error = result < 0 ? (int)-result : ENODATA;
    return r->error || r->got >= r->need;
}

void pst_read_run(pst_read *r) {
    const pst_extents *e = r->file->extents;
    if (!e) {
        run_calls(r);
        return;
    }
    for (int i = 0; i < MOST_DROPS; i++) {
        r->got = 0;
        r->stalls = 0;
        r->error = pst_extents_need(e, r->offset, r->need, &r->mark);
        if (r->error)
            return;
        run_calls(r);
        if (r->error || pst_extents_stayed(e, r->offset, r->need, r->mark))
            return;
    }
    r->error = ENODATA;
}

pst_status pst_read_again(pst_read_file *f, uint64_t offset, size_t size, uint32_t *mark,
                          uint8_t *data, int *sys_errno) {
    uint64_t from = offset & ~(uint64_t)(PST_READ_ALIGN - 1);
    size_t skip = (size_t)(offset - from);
    size_t pages = (skip + size + PST_READ_ALIGN - 1) & ~(size_t)(PST_READ_ALIGN - 1);
    if (!f->extents)
        return PST_CORRUPT;
    uint8_t *memory = pst_malloc(pages + PST_READ_ALIGN);
    if (!memory)
        return PST_NO_MEMORY;
    uint8_t *aligned = memory + (PST_READ_ALIGN - (uintptr_t)memory % PST_READ_ALIGN);
    pst_read r = {.file = f, .offset = from, .data = aligned, .size = pages, .need = skip + size};
    if (pst_extents_stayed(f->extents, offset, size, *mark))
        pst_extents_drop(f->extents, offset, size);
    pst_read_run(&r);
    if (!r.error)
        memcpy(data, aligned + skip, size);
    *sys_errno = r.error;
    *mark = r.mark;
    pst_free(memory);
    return r.error ? PST_IO : PST_OK;
}
