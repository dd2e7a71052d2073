#include "stack/guide_copy.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/coding.h"
#include "base/mem.h"

enum { HEADER = 64, VERSION = 2, MOST_NAME = 4096, RANDOM = 7 };

static const uint8_t MAGIC[8] = {'p', 's', 't', 'g', 'u', 'i', 'd', 'e'};

size_t pst_guide_copy_head(uint32_t parts) {
    return (size_t)pst_sst_align(HEADER + (uint64_t)parts);
}

static void make_header(const pst_guide_copy *c, const pst_guide *g, uint8_t header[HEADER]) {
    memset(header, 0, HEADER);
    memcpy(header, MAGIC, sizeof MAGIC);
    pst_put_u32(header + 8, VERSION);
    pst_put_u32(header + 12, c->parts);
    memcpy(header + 16, g->info.lineage.id, 16);
    pst_put_u64(header + 32, g->info.file_bytes);
    pst_put_u64(header + 40, c->bytes);
}

static char *name_of(const pst_guide *g, const char *guides) {
    enum { ID = 32, SUFFIX = 6 };
    size_t n = strlen(guides);
    char *name = n + ID + SUFFIX + RANDOM < MOST_NAME ? pst_malloc(n + ID + SUFFIX + 1) : NULL;
    if (!name)
        return NULL;
    memcpy(name, guides, n);
    for (int i = 0; i < ID / 2; i++)
        snprintf(name + n + 2 * i, 3, "%02x", g->info.lineage.id[i]);
    memcpy(name + n + ID, ".guide", SUFFIX + 1);
    return name;
}

/* ---- mapping ----------------------------------------------------------------------------------- */

/* Can nobody but us, or root, write to it? What was checked once is looked into without checks. */
static int is_ours(const struct stat *st) {
    return S_ISREG(st->st_mode) && (st->st_uid == geteuid() || !st->st_uid) &&
           !(st->st_mode & (S_IWGRP | S_IWOTH));
}

/* Maps an open file, if it is a copy of the guide; and closes it. */
static void map_file(pst_guide_copy *c, const pst_guide *g, int fd) {
    uint8_t wanted[HEADER], header[HEADER];
    struct stat st;
    void *image = MAP_FAILED;
    make_header(c, g, wanted);
    if (fstat(fd, &st) == 0 && is_ours(&st) && (uint64_t)st.st_size == c->bytes &&
        pread(fd, header, HEADER, 0) == HEADER && memcmp(header, wanted, HEADER) == 0)
        image = mmap(NULL, c->bytes, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (image == MAP_FAILED)
        return;
    c->image = image;
    c->device = st.st_dev;
    c->inode = st.st_ino;
}

/* Returns whether there is a file of that name, which may be none of the guide. */
static int map_named(pst_guide_copy *c, const pst_guide *g) {
    int fd = open(c->name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return errno != ENOENT;
    map_file(c, g, fd);
    return 1;
}

/* ---- making ------------------------------------------------------------------------------------ */

static int write_at(int fd, const uint8_t *data, size_t size, size_t offset) {
    while (size) {
        ssize_t n = pwrite(fd, data, size, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return 0;
        data += n;
        size -= (size_t)n;
        offset += (size_t)n;
    }
    return 1;
}

/* Is it one of a copy that was not yet whole, ID.guide.XXXXXX behind what all names begin with? */
static int is_temporary(const char *name, const char *begin) {
    enum { ID = 32, SUFFIX = 6 };
    size_t n = strlen(begin);
    return !strncmp(name, begin, n) && strlen(name + n) == ID + SUFFIX + RANDOM &&
           !strncmp(name + n + ID, ".guide.", SUFFIX + 1);
}

/* Removes what processes that were killed have left of copies. Whoever makes one holds its lock.
 * REQUIRES: the names of copies fit into MOST_NAME. */
static void remove_left(const char *guides) {
    char folder[MOST_NAME];
    const char *slash = strrchr(guides, '/'), *begin = slash ? slash + 1 : guides;
    snprintf(folder, sizeof folder, "%.*s", (int)(begin - guides), guides);
    DIR *d = opendir(slash ? folder : ".");
    for (const struct dirent *e; d && (e = readdir(d));) {
        int fd = is_temporary(e->d_name, begin)
                     ? openat(dirfd(d), e->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW)
                     : -1;
        if (fd < 0)
            continue;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            (void)unlinkat(dirfd(d), e->d_name, 0);
        close(fd);
    }
    if (d)
        closedir(d);
}

/* All that is looked at without being asked for must be no hole. */
static int write_head(const pst_guide_copy *c, const pst_guide *g, int fd) {
    static const uint8_t ZEROS[4096];
    uint8_t header[HEADER];
    size_t at = HEADER, head = pst_guide_copy_head(c->parts);
    make_header(c, g, header);
    int whole = ftruncate(fd, (off_t)c->bytes) == 0 && write_at(fd, header, HEADER, 0);
    for (size_t n; whole && at < head; at += n) {
        n = head - at < sizeof ZEROS ? head - at : sizeof ZEROS;
        whole = write_at(fd, ZEROS, n, at);
    }
    return whole;
}

/* If somebody takes the file for one that was left, before it is locked, it loses its name, and there
 * is no copy. Who is second takes the first one's. */
static void make(pst_guide_copy *c, const pst_guide *g, const char *guides, pst_budget *budget) {
    char temporary[MOST_NAME + RANDOM + 1];
    snprintf(temporary, sizeof temporary, "%s.XXXXXX", c->name);
    remove_left(guides);
    if (pst_budget_take(budget, PST_SHARED, pst_guide_copy_head(c->parts), PST_GROWTH))
        return;
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0)
        return;
    int whole = flock(fd, LOCK_EX | LOCK_NB) == 0 && write_head(c, g, fd);
    int named = whole && link(temporary, c->name) == 0;
    int taken = whole && !named && errno == EEXIST;
    (void)unlink(temporary);
    if (named) {
        c->put++;
        map_file(c, g, fd);
        return;
    }
    close(fd);
    if (taken)
        (void)map_named(c, g);
}

void pst_guide_copy_open(pst_guide_copy *c, const char *guides, const pst_guide *g, size_t bytes,
                         uint32_t parts, pst_budget *budget) {
    memset(c, 0, sizeof *c);
    c->name = guides ? name_of(g, guides) : NULL;
    if (!c->name)
        return;
    c->bytes = bytes;
    c->parts = parts;
    int is_there = map_named(c, g);
    if (!c->image && is_there)
        (void)unlink(c->name);
    if (!c->image)
        make(c, g, guides, budget);
    if (!c->image)
        pst_guide_copy_close(c);
}

void pst_guide_copy_close(pst_guide_copy *c) {
    if (c->image)
        munmap((void *)(uintptr_t)c->image, c->bytes);
    pst_free(c->name);
    c->image = NULL;
    c->name = NULL;
}

/* ---- parts ------------------------------------------------------------------------------------- */

const uint8_t *pst_guide_copy_part(const pst_guide_copy *c, uint32_t part, size_t offset) {
    return c->image && __atomic_load_n(c->image + HEADER + part, __ATOMIC_ACQUIRE)
               ? c->image + offset
               : NULL;
}

/* The file under its name, if that still is the one that is mapped. A descriptor that stays open would
 * be a second one for each file that is looked into. */
static int open_mapped(const pst_guide_copy *c) {
    struct stat st;
    int fd = open(c->name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd >= 0 && (fstat(fd, &st) || st.st_dev != c->device || st.st_ino != c->inode)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

const uint8_t *pst_guide_copy_put(pst_guide_copy *c, uint32_t part, size_t offset,
                                  const uint8_t *data, size_t size, pst_budget *budget) {
    static const uint8_t THERE = 1;
    if (!c->image || c->is_closed)
        return NULL;
    c->is_closed = 1;
    if (pst_budget_take(budget, PST_SHARED, size, PST_GROWTH))
        return NULL;
    int fd = open_mapped(c);
    if (fd < 0)
        return NULL;
    int whole = write_at(fd, data, size, offset) && write_at(fd, &THERE, 1, HEADER + part);
    close(fd);
    if (!whole)
        return NULL;
    c->is_closed = 0;
    c->put++;
    return c->image + offset;
}
