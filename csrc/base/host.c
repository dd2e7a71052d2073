#include "base/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

uint64_t pst_default_limit(void) {
    return pst_memory_bytes(NULL, NULL) / 4 * 3;
}
