/* Names of types and the order of the entries of a GGUF file; see gguf_file.h. */
#include "tools/engine/gguf_file.h"

const char *gguf_type_name(uint32_t type)
{
    static const char *const names[] = {
        "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64",
    };

    return type < sizeof(names) / sizeof(names[0]) ? names[type] : "unknown type";
}

int gguf_order(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    int r = memcmp(a, b, a_bytes < b_bytes ? a_bytes : b_bytes);

    return r ? r : (a_bytes > b_bytes) - (a_bytes < b_bytes);
}

int gguf_by_key(const void *a, const void *b)
{
    const struct gguf_entry *x = a, *y = b;

    return gguf_order(x->key, x->key_bytes, y->key, y->key_bytes);
}
