/* read.h: one read of a file: what was asked, what has come, and how it goes on.
 *
 * Purpose: io_uring, threads and the caller itself all end a read the same way, whatever the kernel
 * answers to a single call.
 *
 * Thread safety: a pst_read belongs to one thread at a time; a file to all, but for `cached`, which
 * belongs to whoever has the engine.
 *
 * Invariants
 *  RD1. Offset, size and memory of a read are multiples of PST_READ_ALIGN, as O_DIRECT wants.
 *  RD2. A read is over when what was needed has come, or with an errno: never with fewer bytes. A
 *       file that has become too short is ENODATA.
 *  RD3. Interrupted and short calls are repeated, from a multiple of PST_READ_ALIGN on, until some of
 *       them in a row bring nothing.
 */
#ifndef PST_READ_H
#define PST_READ_H

#include "pystate.h"

enum { PST_READ_ALIGN = 4096 };

#ifndef PST_WINDOW_BYTES
#define PST_WINDOW_BYTES (128 * 1024) /* of blocks that are read together; tests have less */
#endif

typedef struct pst_read_file {
    int fd; /* -1: not open */
    int direct;
    uint64_t cached; /* bytes read through the page cache since that was dropped */
} pst_read_file;

typedef struct pst_read {
    pst_read_file *file;
    uint64_t offset;
    uint8_t *data;
    size_t size;
    size_t need; /* the first bytes, without which it has failed */
    size_t got;
    int error;  /* an errno */
    int stalls; /* calls in a row that brought nothing */
    struct pst_read *next;
} pst_read;

/* Opens a file for reading through the page cache. PST_NOT_FOUND, PST_IO; *sys_errno says why. */
pst_status pst_read_file_open(pst_read_file *f, const char *path, uint64_t *size, int *sys_errno);
/* From now on without the page cache, where the file system can do that; else without reading
 * ahead. */
void pst_read_file_direct(pst_read_file *f);
/* Takes what was read out of the page cache again, once it is `bytes` or more. */
void pst_read_file_drop(pst_read_file *f, uint64_t bytes);
void pst_read_file_close(pst_read_file *f);

/* Takes the result of one call: bytes, or a negative errno. Returns whether the read is over. */
int pst_read_take(pst_read *r, int64_t result);
/* Goes on in this thread until it is over. */
void pst_read_run(pst_read *r);

/* In test builds, and only there, a program may change what a call has returned. */
extern int64_t (*pst_read_hook)(const pst_read *r, int64_t result);

#endif
