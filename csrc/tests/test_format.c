/* The example of FORMAT.md is what the writer writes, byte for byte, and what the reader reads.
 * With an argument: prints the example's bytes in the document's form. */
#include "files.h"

#include <ctype.h>

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

static void read_document(memory_file *f) {
    char line[200];
    FILE *document = fopen("../FORMAT.md", "r");
    REQUIRE(document);
    while (fgets(line, sizeof line, document)) {
        unsigned offset, byte;
        int at;
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

static void print_example(const memory_file *f) {
    for (size_t i = 0; i < f->size; i += 16) {
        printf("%04zx ", i);
        for (size_t k = i; k < i + 16; k++)
            printf(" %02x", f->data[k]);
        printf("  ");
        for (size_t k = i; k < i + 16; k++)
            putchar(isprint(f->data[k]) ? f->data[k] : '.');
        putchar('\n');
    }
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
    memory_file written = {0}, documented = {.calls_left = -1};
    pst_io io = file_io(&written, 0);
    CHECK_EQ(write_rows(&s.schema, &info, &io, rows, 4), PST_OK);
    if (argc > 1) {
        (void)argv;
        print_example(&written);
        return 0;
    }
    read_document(&documented);
    CHECK_EQ(documented.size, written.size);
    for (size_t i = 0; i < written.size && i < documented.size; i++)
        CHECK_EQ(documented.data[i], written.data[i]);
    io.ctx = &documented;
    size_t equal;
    CHECK_EQ(read_rows(&s.schema, &io, documented.size, rows, 4, &equal), PST_OK);
    CHECK_EQ(equal, 4);
    file_free(&written);
    file_free(&documented);
    return check_report();
}
