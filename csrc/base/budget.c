#include "base/budget.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

enum { SHARE = 64, BLOCK = 512 }; /* st_blocks' unit, whatever the file system's */

/* The least step of a charge, so that a buffer that grows a little at a time seldom asks. */
#define STEP ((uint64_t)256 << 10)

typedef struct home {
    struct home *next;
    int32_t depth;
    char path[];
} home;

struct pst_budget {
    uint64_t limit;
    uint64_t references;
    uint64_t charged;   /* private memory */
    uint64_t shared;    /* as counted, and what was granted of it since */
    uint64_t since;     /* bytes granted since files were counted */
    uint64_t allowance; /* of them, before files are counted again */
    uint64_t free;      /* tables with limits of their own */
    home *homes;        /* only ever added to */
    pst_refusal refused;
};

static uint64_t load(const uint64_t *p) {
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}

static void store(uint64_t *p, uint64_t n) {
    __atomic_store_n(p, n, __ATOMIC_RELAXED);
}

/* ---- life ------------------------------------------------------------------------------------ */

pst_status pst_budget_create(uint64_t limit_bytes, pst_budget **budget) {
    pst_budget *b = pst_calloc(1, sizeof *b);
    if (!b)
        return PST_NO_MEMORY;
    b->limit = limit_bytes ? limit_bytes : pst_default_limit();
    b->references = 1;
    *budget = b;
    return PST_OK;
}

pst_budget *pst_budget_retain(pst_budget *b) {
    if (b)
        __atomic_add_fetch(&b->references, 1, __ATOMIC_RELAXED);
    return b;
}

void pst_budget_release(pst_budget *b) {
    if (!b || __atomic_sub_fetch(&b->references, 1, __ATOMIC_ACQ_REL))
        return;
    for (home *h = b->homes, *next; h; h = next) {
        next = h->next;
        pst_free(h);
    }
    pst_free(b);
}

uint64_t pst_budget_limit(const pst_budget *b) {
    return b->limit;
}

/* ---- files ----------------------------------------------------------------------------------- */

static int has_home(const pst_budget *b, const char *path) {
    for (home *h = __atomic_load_n(&b->homes, __ATOMIC_ACQUIRE); h; h = h->next)
        if (!strcmp(h->path, path))
            return 1;
    return 0;
}

pst_status pst_budget_add_home(pst_budget *b, const char *path, int32_t depth) {
    size_t size = strlen(path) + 1;
    if (has_home(b, path))
        return PST_OK;
    home *h = pst_malloc(sizeof *h + size);
    if (!h)
        return PST_NO_MEMORY;
    h->depth = depth;
    memcpy(h->path, path, size);
    h->next = __atomic_load_n(&b->homes, __ATOMIC_ACQUIRE);
    /* Two threads may add one home; counted twice it would be wrong. */
    while (
        !__atomic_compare_exchange_n(&b->homes, &h->next, h, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        if (has_home(b, path)) {
            pst_free(h);
            return PST_OK;
        }
    store(&b->allowance, 0);
    return PST_OK;
}

/* A table, or a guide to a file (stack/member.h). Both endings have six characters. */
static int is_table(const char *name) {
    size_t n = strlen(name);
    return n >= 6 && (!strcmp(name + n - 6, ".table") || !strcmp(name + n - 6, ".guide"));
}

/* Adds what the tables in a folder take, and closes the folder; -1 where it cannot be read now.
 * Files that vanish meanwhile do not count. */
static int count_folder(int fd, int32_t depth, uint64_t *bytes) {
    DIR *folder = fdopendir(fd);
    if (!folder) {
        close(fd);
        return -1;
    }
    int failed = 0;
    for (struct dirent *e; !failed && (e = readdir(folder));) {
        struct stat st;
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") || (!depth && !is_table(e->d_name)))
            continue;
        if (fstatat(dirfd(folder), e->d_name, &st, AT_SYMLINK_NOFOLLOW))
            continue;
        if (S_ISREG(st.st_mode) && is_table(e->d_name))
            *bytes += (uint64_t)st.st_blocks * BLOCK;
        if (!S_ISDIR(st.st_mode) || !depth)
            continue;
        int below = openat(dirfd(folder), e->d_name,
                           O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (below >= 0)
            failed = count_folder(below, depth - 1, bytes);
        else
            failed = errno == EMFILE || errno == ENFILE || errno == ENOMEM ? -1 : 0;
    }
    closedir(folder);
    return failed;
}

static int count_home(const home *h, uint64_t *bytes) {
    struct stat st;
    int fd = open(h->path, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0)
        return count_folder(fd, h->depth, bytes);
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM)
        return -1;
    if (!stat(h->path, &st) && S_ISREG(st.st_mode))
        *bytes += (uint64_t)st.st_blocks * BLOCK;
    return 0;
}

/* Counts all homes. Where that is not possible, what was counted last stands. */
static void count(pst_budget *b) {
    uint64_t bytes = 0;
    for (home *h = __atomic_load_n(&b->homes, __ATOMIC_ACQUIRE); h; h = h->next)
        if (count_home(h, &bytes))
            return;
    store(&b->shared, bytes);
}

/* ---- asking ---------------------------------------------------------------------------------- */

static pst_status refuse(pst_budget *b, uint64_t bytes, uint64_t charged, uint64_t shared) {
    store(&b->refused.asked_bytes, bytes);
    store(&b->refused.private_bytes, charged);
    store(&b->refused.shared_bytes, shared);
    return PST_LIMIT;
}

pst_status pst_budget_take(pst_budget *b, pst_memory memory, uint64_t bytes, pst_need need) {
    if (!b)
        return PST_OK;
    uint64_t most = pst_limit_for(b->limit, need);
    uint64_t *own = memory == PST_PRIVATE ? &b->charged : &b->shared;
    uint64_t since = __atomic_add_fetch(&b->since, bytes, __ATOMIC_RELAXED);
    uint64_t used = load(&b->charged) + load(&b->shared) + bytes;
    if (since > load(&b->allowance) || used > most) {
        count(b);
        used = load(&b->charged) + load(&b->shared) + bytes;
        store(&b->allowance, used < b->limit ? (b->limit - used) / SHARE : 0);
        store(&b->since, 0);
    }
    /* It is added before the sum is compared, so that of two requests at once not both find room
     * for one. */
    __atomic_add_fetch(own, bytes, __ATOMIC_SEQ_CST);
    uint64_t charged = __atomic_load_n(&b->charged, __ATOMIC_SEQ_CST);
    uint64_t shared = __atomic_load_n(&b->shared, __ATOMIC_SEQ_CST);
    if (charged + shared <= most)
        return PST_OK;
    __atomic_sub_fetch(own, bytes, __ATOMIC_SEQ_CST);
    return memory == PST_PRIVATE ? refuse(b, bytes, charged - bytes, shared)
                                 : refuse(b, bytes, charged, shared - bytes);
}

void pst_budget_drop(pst_budget *b, uint64_t bytes) {
    if (b && bytes)
        __atomic_sub_fetch(&b->charged, bytes, __ATOMIC_RELAXED);
}

void pst_budget_free_tables(pst_budget *b, int change) {
    if (b)
        __atomic_add_fetch(&b->free, (uint64_t)(int64_t)change, __ATOMIC_RELAXED);
}

pst_status pst_charge_grow(pst_charge *c, uint64_t bytes) {
    pst_need need = load(&c->budget->free) || bytes <= c->small ? PST_COUNTED : PST_RELIEF;
    uint64_t step = bytes / 8 > STEP ? bytes / 8 : STEP, more = bytes - c->bytes;
    pst_status s = pst_budget_take(c->budget, PST_PRIVATE, more + step, need);
    if (!s)
        more += step;
    else
        s = pst_budget_take(c->budget, PST_PRIVATE, more, need);
    if (!s)
        c->bytes += more;
    return s;
}

/* ---- what it says ---------------------------------------------------------------------------- */

void pst_budget_get_stats(pst_budget *b, pst_budget_stats *stats) {
    count(b);
    *stats = (pst_budget_stats){b->limit, load(&b->charged), load(&b->shared)};
}

void pst_budget_refusal(const pst_budget *b, pst_refusal *refusal) {
    *refusal = (pst_refusal){.asked_bytes = load(&b->refused.asked_bytes),
                             .private_bytes = load(&b->refused.private_bytes),
                             .shared_bytes = load(&b->refused.shared_bytes),
                             .limit_bytes = b->limit};
}

/* ---- the default limit ------------------------------------------------------------------------ */

/* How much memory this process may use. A process in a nested control group is killed when any group
 * above it is full, so the smallest limit on the way up counts. */

enum { PATH = 4096, LINE = 2 * PATH };

static void take_smaller(uint64_t *limit, uint64_t n) {
    if (n && n < *limit)
        *limit = n;
}

/* A file's number; UINT64_MAX where there is none, as in "max". */
static uint64_t read_number(const char *path) {
    FILE *f = fopen(path, "re");
    if (!f)
        return UINT64_MAX;
    unsigned long long n = 0;
    int got = fscanf(f, "%llu", &n);
    fclose(f);
    return got == 1 ? (uint64_t)n : UINT64_MAX;
}

/* Whether a list separated by commas has the word. */
static int has_word(const char *list, const char *word) {
    size_t n = strlen(word);
    for (const char *at = list; at; at = strchr(at, ','), at = at ? at + 1 : NULL)
        if (!strncmp(at, word, n) && (at[n] == ',' || at[n] == 0))
            return 1;
    return 0;
}

/* The limits of a group and of all its ancestors up to the mount point of its hierarchy. Only a
 * part of the hierarchy may be mounted, so that a container's own path leads nowhere; the ancestors
 * that are mounted then count. */
static void walk_up(const char *mounted, const char *group, const char *file, uint64_t *limit) {
    char rest[PATH], path[2 * PATH + 64];
    if (snprintf(rest, sizeof rest, "%s", group) >= (int)sizeof rest)
        return;
    for (;;) {
        size_t n = strlen(rest);
        while (n && rest[n - 1] == '/')
            rest[--n] = 0;
        snprintf(path, sizeof path, "%s%s/%s", mounted, rest, file);
        take_smaller(limit, read_number(path));
        char *last = strrchr(rest, '/');
        if (!last)
            return;
        *last = 0;
    }
}

/* Mount points write blanks and the like as \ooo. */
static void unescape(char *s) {
    char *to = s;
    for (; *s; s++)
        if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' &&
            s[3] >= '0' && s[3] <= '7') {
            *to++ = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
            s += 3;
        } else {
            *to++ = *s;
        }
    *to = 0;
}

/* Walks up from the group in every mount of its hierarchy; whether there was one. `path` begins
 * with the mount's own root where only a part of the hierarchy is mounted. */
static int walk_mounts(const char *proc, int version, const char *group, uint64_t *limit) {
    char line[LINE], root[PATH], point[PATH], type[64], options[PATH];
    snprintf(line, sizeof line, "%s/self/mountinfo", proc);
    FILE *f = fopen(line, "re");
    int found = 0;
    while (f && fgets(line, sizeof line, f)) {
        const char *after = strstr(line, " - ");
        if (!after || sscanf(line, "%*s %*s %*s %4095s %4095s", root, point) != 2 ||
            sscanf(after, " - %63s %*s %4095s", type, options) != 2)
            continue;
        if (version == 2 ? strcmp(type, "cgroup2") != 0
                         : strcmp(type, "cgroup") != 0 || !has_word(options, "memory"))
            continue;
        unescape(root);
        unescape(point);
        size_t n = strlen(root);
        int below = n > 1 && !strncmp(group, root, n) && (group[n] == '/' || group[n] == 0);
        walk_up(point, below ? group + n : group,
                version == 2 ? "memory.max" : "memory.limit_in_bytes", limit);
        found = 1;
    }
    if (f)
        fclose(f);
    return found;
}

/* The same where mounts are not known: in the places where they are by custom. */
static void walk_customary(const char *cgroups, int version, const char *group, uint64_t *limit) {
    char path[PATH];
    if (version == 1) {
        snprintf(path, sizeof path, "%s/memory", cgroups);
        walk_up(path, group, "memory.limit_in_bytes", limit);
        return;
    }
    walk_up(cgroups, group, "memory.max", limit);
    snprintf(path, sizeof path, "%s/unified", cgroups);
    walk_up(path, group, "memory.max", limit);
}

static uint64_t physical_bytes(const char *proc) {
    char line[LINE];
    unsigned long long kib = 0;
    snprintf(line, sizeof line, "%s/meminfo", proc);
    FILE *f = fopen(line, "re");
    while (f && !kib && fgets(line, sizeof line, f))
        if (sscanf(line, "MemTotal: %llu", &kib) != 1)
            kib = 0;
    if (f)
        fclose(f);
    return kib ? (uint64_t)kib * 1024
               : (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t pst_memory_bytes(const char *proc, const char *cgroups) {
    char line[LINE];
    if (!proc)
        proc = "/proc";
    if (!cgroups)
        cgroups = "/sys/fs/cgroup";
    uint64_t limit = physical_bytes(proc);
    snprintf(line, sizeof line, "%s/self/cgroup", proc);
    FILE *f = fopen(line, "re");
    while (f && fgets(line, sizeof line, f)) {
        /* id:controllers:path, the controllers empty in version 2. */
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        int version = controllers[1] == 0 ? 2 : has_word(controllers + 1, "memory") ? 1 : 0;
        if (version && !walk_mounts(proc, version, group, &limit))
            walk_customary(cgroups, version, group, &limit);
    }
    if (f)
        fclose(f);
    return limit;
}

void pst_memory_give_back(void) {
#ifdef __GLIBC__
    (void)malloc_trim(0);
#endif
}

uint64_t pst_default_limit(void) {
    return pst_memory_bytes(NULL, NULL) / 4 * 3;
}
