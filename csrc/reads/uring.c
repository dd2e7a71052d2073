#include "reads/uring.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Numbers of the kernel's interface, the same on all architectures that this is built for. */
enum {
    CALL_SETUP = 425,
    CALL_ENTER = 426,
    CALL_REGISTER = 427,
    AT_SQ_RING = 0,
    AT_CQ_RING = 0x8000000,
    AT_ENTRIES = 0x10000000,
    ENTER_GETEVENTS = 1,
    REGISTER_PROBE = 8,
    OP_READ = 22,
    PROBED = 64,
    OP_SUPPORTED = 1
};

struct sq_offsets {
    uint32_t head, tail, ring_mask, ring_entries, flags, dropped, array, reserved;
    uint64_t user_addr;
};

struct cq_offsets {
    uint32_t head, tail, ring_mask, ring_entries, overflow, cqes, flags, reserved;
    uint64_t user_addr;
};

struct parameters {
    uint32_t sq_entries, cq_entries, flags, sq_thread_cpu, sq_thread_idle, features, wq_fd;
    uint32_t reserved[3];
    struct sq_offsets sq;
    struct cq_offsets cq;
};

struct entry {
    uint8_t opcode, flags;
    uint16_t priority;
    int32_t fd;
    uint64_t offset;
    uint64_t address;
    uint32_t length;
    uint32_t rw_flags;
    uint64_t user_data;
    uint64_t rest[3];
};

struct completion {
    uint64_t user_data;
    int32_t result;
    uint32_t flags;
};

struct probe {
    uint8_t last_op, n_ops;
    uint16_t reserved;
    uint32_t reserved2[3];
    struct {
        uint8_t op, reserved;
        uint16_t flags;
        uint32_t reserved2;
    } ops[PROBED];
};

_Static_assert(sizeof(struct parameters) == 120 && sizeof(struct entry) == 64 &&
                   sizeof(struct completion) == 16 && sizeof(struct probe) == 16 + 8 * PROBED,
               "sizes of the kernel's interface");

static int can_read(int fd) {
    struct probe p;
    memset(&p, 0, sizeof p);
    return syscall(CALL_REGISTER, fd, REGISTER_PROBE, &p, PROBED) == 0 && p.last_op >= OP_READ &&
           (p.ops[OP_READ].flags & OP_SUPPORTED);
}

static void *map(pst_uring *u, int i, size_t size, int at) {
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, u->fd, at);
    if (p == MAP_FAILED)
        return NULL;
    u->maps[i] = p;
    u->sizes[i] = size;
    return madvise(p, size, MADV_DONTFORK) ? NULL : p;
}

static int map_all(pst_uring *u, const struct parameters *p) {
    uint8_t *sq = map(u, 0, p->sq.array + p->sq_entries * sizeof(uint32_t), AT_SQ_RING);
    uint8_t *cq =
        sq ? map(u, 1, p->cq.cqes + p->cq_entries * sizeof(struct completion), AT_CQ_RING) : NULL;
    u->entries = cq ? map(u, 2, p->sq_entries * sizeof(struct entry), AT_ENTRIES) : NULL;
    if (!u->entries)
        return 0;
    u->sq_tail = (uint32_t *)(void *)(sq + p->sq.tail);
    u->sq_mask = *(uint32_t *)(void *)(sq + p->sq.ring_mask);
    u->sq_array = (uint32_t *)(void *)(sq + p->sq.array);
    u->cq_head = (uint32_t *)(void *)(cq + p->cq.head);
    u->cq_tail = (uint32_t *)(void *)(cq + p->cq.tail);
    u->cq_mask = *(uint32_t *)(void *)(cq + p->cq.ring_mask);
    u->completions = cq + p->cq.cqes;
    return 1;
}

pst_status pst_uring_open(pst_uring *u, uint32_t depth, int *sys_errno) {
    struct parameters p;
    memset(&p, 0, sizeof p);
    memset(u, 0, sizeof *u);
    u->fd = (int)syscall(CALL_SETUP, depth, &p);
    if (u->fd < 0) {
        *sys_errno = errno;
        return PST_IO;
    }
    *sys_errno = ENOSYS;
    if (can_read(u->fd) && map_all(u, &p))
        return PST_OK;
    pst_uring_close(u);
    return PST_IO;
}

void pst_uring_close(pst_uring *u) {
    for (int i = 0; i < 3; i++)
        if (u->maps[i])
            munmap(u->maps[i], u->sizes[i]);
    pst_uring_forget(u);
}

void pst_uring_forget(pst_uring *u) {
    if (u->fd >= 0)
        close(u->fd);
    memset(u, 0, sizeof *u);
    u->fd = -1;
}

static struct entry *entry_at(pst_uring *u, uint32_t at) {
    return (struct entry *)(void *)u->entries + (at & u->sq_mask);
}

void pst_uring_queue(pst_uring *u, int fd, uint64_t offset, void *data, uint32_t size, void *tag) {
    uint32_t tail = *u->sq_tail;
    struct entry *e = entry_at(u, tail);
    memset(e, 0, sizeof *e);
    e->opcode = OP_READ;
    e->fd = fd;
    e->offset = offset;
    e->address = (uint64_t)(uintptr_t)data;
    e->length = size;
    e->user_data = (uint64_t)(uintptr_t)tag;
    u->sq_array[tail & u->sq_mask] = tail & u->sq_mask;
    __atomic_store_n(u->sq_tail, tail + 1, __ATOMIC_RELEASE);
    u->queued++;
}

int pst_uring_enter(pst_uring *u, uint32_t wait) {
    for (;;) {
        long n = syscall(CALL_ENTER, u->fd, u->queued, wait, wait ? ENTER_GETEVENTS : 0, NULL, 0);
        if (n >= 0) {
            u->queued -= (uint32_t)n;
            return 0;
        }
        if (errno != EINTR)
            return errno;
    }
}

void *pst_uring_unqueue(pst_uring *u) {
    if (!u->queued)
        return NULL;
    uint32_t tail = *u->sq_tail - 1;
    u->queued--;
    void *tag = (void *)(uintptr_t)entry_at(u, tail)->user_data;
    __atomic_store_n(u->sq_tail, tail, __ATOMIC_RELEASE);
    return tag;
}

void *pst_uring_next(pst_uring *u, int32_t *result) {
    uint32_t head = *u->cq_head;
    if (head == __atomic_load_n(u->cq_tail, __ATOMIC_ACQUIRE))
        return NULL;
    const struct completion *c = (struct completion *)(void *)u->completions + (head & u->cq_mask);
    void *tag = (void *)(uintptr_t)c->user_data;
    *result = c->result;
    __atomic_store_n(u->cq_head, head + 1, __ATOMIC_RELEASE);
    return tag;
}
