/* read.h: one read of a file: what was asked, what has come, and how it goes on.
 *
 * Purpose: io_uring, threads and the caller itself all end a read the same way, whatever the kernel
 * answers to a single call.
 *
 * Thread safety: a pst_read belongs to one thread at a time; a file to all, but for `cached`, which
 * belongs to whoever has the engine.
 *
 * Invariants
 *  RD1. Offset, size and memory of a read are multiples of PST_READ_ALIGN, as O_DIRECT wants; but of a
 *       single read of a file that is read through the page cache.
 *  RD2. A read is over when what was needed has come, or with an errno: never with fewer bytes. A
 *       file that has become too short is ENODATA.
 *  RD3. Interrupted and short calls are repeated, from a multiple of PST_READ_ALIGN on, until some of
 *       them in a row bring nothing.
 *  RD4. Of a file with extents a read ends well only if what was needed was here all along: what is
 *       dropped meanwhile is brought, and read again.
 */
#ifndef PST_READ_H
#define PST_READ_H

#include "reads/extents.h"

enum { PST_READ_ALIGN = 4096 };

#ifndef PST_WINDOW_BYTES
#define PST_WINDOW_BYTES (128 * 1024) /* of blocks that are read together; tests have less */
#endif

typedef struct pst_read_file {
    int fd; /* -1: not open */
    int direct;
    uint64_t cached; /* bytes read through the page cache since that was dropped */
    const pst_extents
        *extents; /* NULL: all of the file is there. Else it is read by pst_read_run */
} pst_read_file;

typedef struct pst_read {
    pst_read_file *file;
    uint64_t offset;
    uint8_t *data;
    size_t size;
    size_t need; /* the first bytes, without which it has failed */
    size_t got;
    int error;     /* an errno */
    int stalls;    /* calls in a row that brought nothing */
    uint32_t mark; /* of the file's extents, when it was read */
    struct pst_read *next;
} pst_read;

/* Opens a file for reading through the page cache. PST_NOT_FOUND, PST_IO; *sys_errno says why. */
pst_status pst_read_file_open(pst_read_file *f, const char *path, uint64_t *size, int *sys_errno);
/* From now on without the page cache, where the file system can do that; else without reading
 * ahead. */
void pst_read_file_direct(pst_read_file *f);
/* From now on without reading ahead. */
void pst_read_file_random(const pst_read_file *f);
/* Takes what was read out of the page cache again, once it is `bytes` or more. */
void pst_read_file_drop(pst_read_file *f, uint64_t bytes);
/* Has the kernel read a part into the page cache, without waiting for it. */
void pst_read_file_ahead(const pst_read_file *f, uint64_t offset, uint64_t size);
void pst_read_file_close(pst_read_file *f);

/* Takes the result of one call: bytes, or a negative errno. Returns whether the read is over. */
int pst_read_take(pst_read *r, int64_t result);
/* Goes on in this thread until it is over. */
void pst_read_run(pst_read *r);
/* Reads what lies in the page cache, without waiting: whether that was what was needed. */
int pst_read_cached(pst_read *r);
/* Of a file with extents what is damaged is read again, as some other part's read may have brought one
 * of its extents anew, and not the others. */
enum { PST_READ_TRIES = 3 };
/* Reads once more what was read and is damaged, if that may help, into `data`: the same part, whose
 * extents are dropped before, unless one of them was since the read with that mark, which is set anew.
 * PST_CORRUPT: the file has none, and is as it is; PST_NO_MEMORY; PST_IO, with *sys_errno. */
pst_status pst_read_again(pst_read_file *f, uint64_t offset, size_t size, uint32_t *mark,
                          uint8_t *data, int *sys_errno);

/* In test builds, and only there, a program may change what a call has returned. */
extern int64_t (*pst_read_hook)(const pst_read *r, int64_t result);

#endif
