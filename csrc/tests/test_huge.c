/* A shared table's rows lie in huge pages once its delta is written, without a byte more; ranges
 * with holes stay as they are. */
#include "files.h"
#include "memory/huge.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum { ROWS = 300000 };

static char path[64];
static const pst_identity IDENTITY = {{1, 2, 3}, 4, 5, 6, {7}};

static uint64_t file_blocks(int fd) {
    struct stat s;
    CHECK_EQ(fstat(fd, &s), 0);
    return (uint64_t)s.st_blocks;
}

/* Kilobytes of the file that this process has mapped in huge pages. */
static uint64_t huge_kilobytes(void) {
    FILE *f = fopen("/proc/self/smaps", "re");
    char line[512];
    uint64_t sum = 0;
    unsigned long long n;
    int ours = 0;
    REQUIRE(f);
    while (fgets(line, sizeof line, f)) {
        if (strchr(line, '-') && strchr(line, '-') < strchr(line, ' '))
            ours = strstr(line, path) != NULL;
        if (ours && sscanf(line, "ShmemPmdMapped: %llu", &n) == 1)
            sum += n;
    }
    fclose(f);
    return sum;
}

/* A file of n huge pages, all written but for one page. */
static int make_file(int n, off_t hole) {
    static uint8_t page[PST_HUGE_PAGE];
    memset(page, 1, sizeof page);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    REQUIRE(fd >= 0);
    for (int i = 0; i < n; i++)
        REQUIRE(write(fd, page, sizeof page) == (ssize_t)sizeof page);
    if (hole >= 0)
        REQUIRE(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, hole, 4096) == 0);
    return fd;
}

/* Whether the system collapses pages of files there. */
static int can_collapse(void) {
    int fd = make_file(1, -1);
    uint8_t *room = mmap(NULL, 2 * PST_HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(room != MAP_FAILED);
    uint8_t *at = room + (PST_HUGE_PAGE - (uintptr_t)room % PST_HUGE_PAGE) % PST_HUGE_PAGE;
    REQUIRE(mmap(at, PST_HUGE_PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == at);
    int can = madvise(at, PST_HUGE_PAGE, MADV_COLLAPSE) == 0;
    munmap(room, 2 * PST_HUGE_PAGE);
    close(fd);
    unlink(path);
    return can;
}

static void test_holes_stay(void) {
    int fd = make_file(3, PST_HUGE_PAGE + 4096);
    pst_huge huge = {.n = 4, .fd = open(path, O_RDONLY | O_CLOEXEC)};
    for (uint64_t i = 0; i < 4; i++) /* the last one lies behind the end */
        huge.at[i] = i * PST_HUGE_PAGE;
    uint64_t before = file_blocks(fd);
    pst_huge_make(&huge);
    CHECK_EQ(file_blocks(fd), before);
    CHECK_EQ(huge.n, 0);
    close(fd);
    unlink(path);
}

static void test_table(void) {
    static const pst_column key = {.name = "k", .type = PST_INT64};
    static const pst_column state = {.name = "n", .type = PST_INT64};
    const pst_schema schema = {1, 1, &key, &state};
    pst_table_options o = {.max_parallelism = 4,
                           .last_key_group = 3,
                           .limit_bytes = (uint64_t)1 << 28,
                           .path = path,
                           .identity = &IDENTITY,
                           .create = 1};
    pst_lineage lineage = {.id = {1}, .epoch = 1};
    pst_table *t = NULL;
    pst_sealed *sealed = NULL;
    pst_file_info info;
    pst_cell v = {{7, 0}, {NULL, 0}};
    memory_file f = {0};
    REQUIRE(pst_table_open(&schema, &o, &t, NULL, NULL) == PST_OK);
    for (uint64_t k = 0; k < ROWS; k++) {
        CHECK_EQ(pst_key_set_word(t, k), PST_OK);
        CHECK_EQ(pst_value_put(t, 0, &v), PST_OK);
    }
    CHECK_EQ(pst_table_seal(t, &lineage, &sealed), PST_OK);
    int fd = open(path, O_RDONLY);
    uint64_t before = file_blocks(fd);
    pst_io io = file_io(&f, 0);
    CHECK_EQ(pst_sealed_write(sealed, &io, &info), PST_OK);
    CHECK_EQ(file_blocks(fd), before);
    close(fd);
    pst_sealed_destroy(sealed);
    for (uint64_t k = 0; k < ROWS; k += 100) { /* an access maps what is huge by now */
        const pst_cell *cell = &v;
        CHECK_EQ(pst_key_set_word(t, k), PST_OK);
        CHECK_EQ(pst_value_put(t, 0, cell), PST_OK);
    }
    CHECK(huge_kilobytes() >= ROWS * 24 / PST_HUGE_PAGE * (PST_HUGE_PAGE / 1024));
    pst_table_close(t);
    unlink(path);
    file_free(&f);
}

int main(void) {
    snprintf(path, sizeof path, "/dev/shm/pystate-test-huge-%ld", (long)getpid());
    if (!can_collapse()) {
        printf("skipped: the system does not collapse pages of shared memory (Linux 6.1)\n");
        return 0;
    }
    test_holes_stay();
    test_table();
    return check_report();
}
