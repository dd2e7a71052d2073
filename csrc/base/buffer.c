#include "base/buffer.h"

#include "base/mem.h"

enum { FIRST_CAPACITY = 1024 };

pst_status pst_buffer_grow(pst_buffer *b, size_t size) {
    size_t capacity = b->capacity < FIRST_CAPACITY ? FIRST_CAPACITY : b->capacity + b->capacity / 2;
    if (capacity < size)
        capacity = size;
    uint8_t *data = pst_realloc(b->data, capacity);
    if (!data)
        return PST_NO_MEMORY;
    b->data = data;
    b->capacity = capacity;
    return PST_OK;
}

void pst_buffer_free(pst_buffer *b) {
    pst_free(b->data);
    *b = (pst_buffer){NULL, 0, 0};
}
