/* See file_kind.h. */
#include "base/file_kind.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>

struct file_kind {
    const char *text; /* at the beginning of the file; letters of any case */
    size_t n;
    const char *what;
};

#define KIND(text, what)                                                                                     \
    {                                                                                                        \
        text, sizeof(text) - 1, what                                                                         \
    }

/* Where one beginning is that of another, the longer one stands first. */
static const struct file_kind kinds[] = {
    KIND("KVCTABLE", "an allocation table: 'kvcobra table stage' and 'kvcobra inspect' take it"),
    KIND("KVCSTATS", "a statistics file: 'kvcobra solve' makes a table of it"),
    KIND("KVCMOMEN", "a moments file: 'kvcobra solve' makes a table of it"),
    KIND("KVCPARTL", "a checkpoint of 'kvcobra calibrate': the same command with --resume ends it"),
    KIND("GGUF", "a GGUF model: 'kvcobra calibrate' makes statistics of it"),
    KIND("ggjt", "a GGML file of the time before GGUF: convert it with llama.cpp"),
    KIND("tjgg", "a GGML file of the time before GGUF: convert it with llama.cpp"),
    KIND("lmgg", "a GGML file of the time before GGUF: convert it with llama.cpp"),
    KIND("fmgg", "a GGML file of the time before GGUF: convert it with llama.cpp"),
    KIND("algg", "a LoRA adapter of the time before GGUF, not a model"),
    KIND("version https://git-lfs", "a pointer of Git LFS: 'git lfs pull' gets the file itself"),
    KIND("<!doctype html", "an HTML page, perhaps the answer to a download that failed"),
    KIND("<html", "an HTML page, perhaps the answer to a download that failed"),
    KIND("PK\3\4",
         "a ZIP archive, as PyTorch's files are: save the model as safetensors, or convert it to GGUF"),
    KIND("\x1f\x8b", "a compressed file: gunzip it first"),
    KIND("\x28\xb5\x2f\xfd", "a compressed file: unpack it with zstd first"),
    KIND("\xfd"
         "7zXZ",
         "a compressed file: unpack it with xz first"),
    KIND("BZh", "a compressed file: unpack it with bzip2 first"),
    KIND("\x7f"
         "ELF",
         "a program or library"),
};

static uint64_t file_kind_number(const uint8_t *p, size_t n)
{
    uint64_t v = 0;

    while (n-- > 0)
        v = v << 8 | p[n];
    return v;
}

/* u64: bytes of a header in JSON, which begins behind it. */
static bool file_kind_is_safetensors(const uint8_t *p, size_t n)
{
    return n > 8 && p[8] == '{' && file_kind_number(p, 8) <= UINT32_MAX;
}

/* i32: number of tensors, i32: bytes of the first name, the name. */
static bool file_kind_is_imatrix(const uint8_t *p, size_t n)
{
    static const char *const names[] = {"blk.", "output", "token_embd"};
    uint64_t n_name = n >= 8 ? file_kind_number(p + 4, 4) : 0;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (n_name >= strlen(names[i]) && n_name <= 256 && n >= 8 + strlen(names[i]) &&
            memcmp(p + 8, names[i], strlen(names[i])) == 0)
            return true;
    return false;
}

/* Printable bytes and those above 0x7f, which UTF-8 and other character sets use. */
static bool file_kind_is_text(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((p[i] < ' ' && !memchr("\t\n\r\f\x1b", p[i], 5)) || p[i] == 0x7f)
            return false;
    return true;
}

const char *file_kind_other_than_text(const void *bytes, size_t n)
{
    const uint8_t *p = bytes;

    if (n > FILE_KIND_BYTES)
        n = FILE_KIND_BYTES;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (n >= kinds[i].n && strncasecmp(bytes, kinds[i].text, kinds[i].n) == 0)
            return kinds[i].what;
    if (file_kind_is_safetensors(p, n))
        return memmem(p, n, "lora_", 5)
                   ? "a LoRA adapter in safetensors, not a model"
                   : "a safetensors file: 'python -m kvcobra calibrate' takes the folder of its model";
    if (file_kind_is_imatrix(p, n))
        return "an importance matrix of llama.cpp, not a model";
    return NULL;
}

const char *file_kind_of(const void *bytes, size_t n)
{
    const char *other = n > 0 ? file_kind_other_than_text(bytes, n) : "empty", *text = bytes;

    if (other)
        return other;
    if (!file_kind_is_text(bytes, n < FILE_KIND_BYTES ? n : FILE_KIND_BYTES))
        return "a file of a kind that kvcobra does not know";
    return text[0] == '{' || text[0] == '[' ? "a JSON text" : "a text";
}
