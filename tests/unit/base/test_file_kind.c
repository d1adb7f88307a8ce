/* Tests of base/file_kind.c. */
#include "base/file_kind.h"

#include <string.h>

#include "tests/lib/test.h"

const char test_suite[] = "file_kind";

#define CASE(text, words)                                                                                    \
    {                                                                                                        \
        text, sizeof(text) - 1, words                                                                        \
    }

static void test_kinds(void)
{
    static const struct {
        const char *text;
        size_t n;
        const char *words;
    } cases[] = {
        CASE("KVCTABLE\1\0\0\0", "an allocation table"),
        CASE("KVCSTATS", "a statistics file: 'kvcobra solve'"),
        CASE("KVCMOMEN\0", "a moments file"),
        CASE("KVCPARTL", "a checkpoint"),
        CASE("GGUF\3\0\0\0", "a GGUF model: 'kvcobra calibrate'"),
        CASE("tjgg", "before GGUF"),
        CASE("version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        CASE("<!DOCTYPE html><html>", "an HTML page"),
        CASE("<html lang=en>", "an HTML page"),
        CASE("PK\3\4\x14\0", "ZIP"),
        CASE("\x1f\x8b\x08\0", "gunzip"),
        CASE("\x28\xb5\x2f\xfd", "zstd"),
        CASE("\x7f"
             "ELF\2",
             "a program"),
        CASE("\x40\0\0\0\0\0\0\0{\"model.norm.weight\":", "a safetensors file"),
        CASE("\x40\0\0\0\0\0\0\0{\"a.lora_A.weight\":", "a LoRA adapter"),
        CASE("\xd2\0\0\0\x13\0\0\0blk.0.attn_k.weight", "an importance matrix"),
        CASE("Once upon a time\r\n", "a text"),
        CASE("caf\xc3\xa9", "a text"),
        CASE("{\"a\": 1}", "a JSON text"),
        CASE("", "empty"),
        CASE("\0\0\0\0", "does not know"),
        CASE("\x40\0\0\0\0\0\0\xff{", "does not know"),
        CASE("\xd2\0\0\0\x03\0\0\0blk.", "does not know"),
        CASE("KVC\0", "does not know"),
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *what = file_kind_of(cases[i].text, cases[i].n);

        CU_ASSERT_PTR_NOT_NULL(strstr(what, cases[i].words));
        if (!strstr(what, cases[i].words))
            printf("    case %zu: %s\n", i, what);
    }
}

static void test_texts(void)
{
    CU_ASSERT_PTR_NULL(file_kind_other_than_text("Once upon a time", 16));
    CU_ASSERT_PTR_NULL(file_kind_other_than_text("caf\xe9", 4));
    CU_ASSERT_PTR_NULL(file_kind_other_than_text("", 0));
    CU_ASSERT_STRING_EQUAL(file_kind_other_than_text("KVCTABLE\1", 9), file_kind_of("KVCTABLE\1", 9));
}

/* A text stays one, however long; what lies behind the first bytes is not looked at. */
static void test_long(void)
{
    char text[2 * FILE_KIND_BYTES];

    memset(text, 'x', sizeof(text));
    text[FILE_KIND_BYTES] = '\0';
    CU_ASSERT_STRING_EQUAL(file_kind_of(text, sizeof(text)), "a text");
    text[FILE_KIND_BYTES - 1] = '\0';
    CU_ASSERT_STRING_NOT_EQUAL(file_kind_of(text, sizeof(text)), "a text");
}

const struct test_case test_cases[] = {TEST(test_kinds), TEST(test_texts), TEST(test_long), TEST_END};
