/* The examples of FORMAT.md are what the writer writes, byte for byte, and what the reader reads.
 * With an argument: prints their bytes in the document's form. */
#include "files.h"

#include <ctype.h>

#include "base/coding.h"

static pst_record example_row(uint64_t key, pst_record_op op, uint64_t changed, uint64_t count,
                              const char *name) {
    static const pst_column id = {.name = "id", .type = PST_INT64};
    pst_record r;
    memset(&r, 0, sizeof r);
    r.op = op;
    r.changed = r.present = changed;
    r.key[0].word[0] = key;
    r.cells[0].word[0] = count;
    r.cells[1].bytes = (pst_bytes){(const uint8_t *)name, (uint32_t)strlen(name)};
    r.hash = pst_hash_key(&id, 1, r.key, 0);
    r.key_group = pst_key_group(r.hash, 4);
    return r;
}

/* Of a guided file the document shows what comes behind the blocks. */
static const char GUIDED[] = "## An example of a guide";

static void read_document(memory_file *f, int guided) {
    char line[200];
    int in_guided = 0;
    FILE *document = fopen("../FORMAT.md", "r");
    REQUIRE(document);
    while (fgets(line, sizeof line, document)) {
        unsigned offset, byte;
        int at;
        in_guided |= strncmp(line, GUIDED, sizeof GUIDED - 1) == 0;
        if (in_guided != guided)
            continue;
        if (sscanf(line, "%4x  %n", &offset, &at) != 1 || at != 6 || strlen(line) < 30 ||
            !isxdigit((unsigned char)line[3]))
            continue;
        CHECK_EQ(offset, f->size);
        for (int i = 0; i < 16 && sscanf(line + at + 3 * i, "%2x", &byte) == 1; i++) {
            uint8_t b = (uint8_t)byte;
            file_write(f, &b, 1);
        }
    }
    fclose(document);
}

static void print_example(const memory_file *f, size_t from) {
    for (size_t i = from; i < f->size; i += 16) {
        printf("%04zx ", i);
        for (size_t k = i; k < i + 16; k++)
            printf(" %02x", f->data[k]);
        printf("  ");
        for (size_t k = i; k < i + 16; k++)
            putchar(isprint(f->data[k]) ? f->data[k] : '.');
        putchar('\n');
    }
}

enum { BLOCKS_END = 0x2c0 };

static void check_same(const memory_file *documented, const memory_file *written) {
    CHECK_EQ(documented->size, written->size);
    for (size_t i = 0; i < written->size && i < documented->size; i++)
        CHECK_EQ(documented->data[i], written->data[i]);
}

static void check_read(const pst_schema *s, const pst_record *rows, memory_file *f) {
    size_t equal;
    pst_io io = file_io(f, 0);
    CHECK_EQ(read_rows(s, &io, f->size, rows, 4, &equal), PST_OK);
    CHECK_EQ(equal, 4);
}

static void check_plain(const pst_schema *s, const pst_record *rows, const memory_file *written) {
    memory_file documented = {.calls_left = -1};
    read_document(&documented, 0);
    check_same(&documented, written);
    check_read(s, rows, &documented);
    file_free(&documented);
}

/* Before its guide the file is as the other one, but for a bit, a size and their checksum. */
static void check_guided(const pst_schema *s, const pst_record *rows, const memory_file *plain,
                         const memory_file *written) {
    memory_file documented = {.calls_left = -1};
    REQUIRE(file_write(&documented, plain->data, BLOCKS_END) == 0);
    documented.data[0x18] = 8;
    documented.data[0x35] = 4096 >> 8;
    pst_put_u64(documented.data + 0x78, pst_xxh64(documented.data, 0x78, 0));
    read_document(&documented, 1);
    check_same(&documented, written);
    check_read(s, rows, &documented);
    file_free(&documented);
}

int main(int argc, char **argv) {
    random_schema s;
    schema_add(&s, 0, PST_INT64, 0);
    schema_add(&s, 1, PST_INT64, 0);
    schema_add(&s, 2, PST_STRING, 0);
    strcpy(s.names[0], "id");
    strcpy(s.names[1], "count");
    strcpy(s.names[2], "name");
    schema_done(&s, 1, 2);
    pst_record rows[4] = {
        example_row(1, PST_PUT, 3, 10, "ant"),
        example_row(2, PST_PUT, 1, 20, ""),
        example_row(3, PST_DELETE, 0, 0, ""),
        example_row(4, PST_PUT, 3, 40, ""),
    };
    rows[3].present = 1; /* its name was cleared */
    pst_record spare[4];
    sort_rows(&s.schema, rows, spare, 4);
    pst_file_info info = {.kind = PST_DELTA,
                          .lineage = {.epoch = 42, .query = UINT64_C(0x1122334455667788)},
                          .max_parallelism = 4,
                          .last_key_group = 3};
    for (uint8_t i = 0; i < 16; i++) {
        info.lineage.id[i] = (uint8_t)(0xa0 + i);
        info.lineage.parent[i] = (uint8_t)(0xb0 + i);
    }
    memory_file written = {0}, guided = {0};
    pst_io io = file_io(&written, 0), guided_io = file_io(&guided, 0);
    pst_file_info guided_info = info;
    guided_info.block_bytes = 4096;
    CHECK_EQ(write_rows(&s.schema, &info, &io, rows, 4), PST_OK);
    CHECK_EQ(write_rows(&s.schema, &guided_info, &guided_io, rows, 4), PST_OK);
    if (argc > 1) {
        (void)argv;
        print_example(&written, 0);
        print_example(&guided, BLOCKS_END);
        return 0;
    }
    check_plain(&s.schema, rows, &written);
    check_guided(&s.schema, rows, &written, &guided);
    file_free(&written);
    file_free(&guided);
    return check_report();
}
