/* Fields of formats as logfmt and JSON: quotes, numbers, text after the last value, long values. */
#include "daemon/loop/log_line.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "tests/lib/test.h"

const char test_suite[] = "log_line";

static struct log_line line;

__attribute__((format(printf, 2, 3))) static const char *made(enum log_format format, const char *fmt, ...)
{
    va_list ap;

    log_line_begin(&line, format);
    log_line_add(&line, "event", "x", false);
    va_start(ap, fmt);
    log_line_add_format(&line, fmt, ap);
    va_end(ap);
    return log_line_end(&line);
}

static void test_logfmt(void)
{
    CU_ASSERT_STRING_EQUAL(made(LOG_FORMAT_LOGFMT, "a=%d b=%s", -7, "word"), "event=x a=-7 b=word");
    CU_ASSERT_STRING_EQUAL(made(LOG_FORMAT_LOGFMT, "path=%s n=%zu", "/a b", (size_t) 3),
                           "event=x path=\"/a b\" n=3");
    CU_ASSERT_STRING_EQUAL(made(LOG_FORMAT_LOGFMT, "empty=%s message=\"%s\"", "", "say \"no\" \\"),
                           "event=x empty=\"\" message=\"say \\\"no\\\" \\\\\"");
    CU_ASSERT_STRING_EQUAL(made(LOG_FORMAT_LOGFMT, "pid=%ld uid=%lu, closing the connection", 5l, 6ul),
                           "event=x pid=5 uid=6 action=\"closing the connection\"");
    CU_ASSERT_STRING_EQUAL(made(LOG_FORMAT_LOGFMT, "message=\"%s: its end\": starting %s", "a, b", "anew"),
                           "event=x message=\"a, b: its end\" action=\"starting anew\"");
    CU_ASSERT_STRING_EQUAL(made(LOG_FORMAT_LOGFMT, "a=%.*s b=%llu c=50%%", 2, "xyz", 1ull << 63),
                           "event=x a=xy b=9223372036854775808 c=50%");
}

static void test_json(void)
{
    CU_ASSERT_STRING_EQUAL(made(LOG_FORMAT_JSON, "a=%d b=%s c=%u%s d=\"%d\"", -7, "8", 9u, "s", 1),
                           "{\"event\":\"x\",\"a\":-7,\"b\":\"8\",\"c\":\"9s\",\"d\":\"1\"}");
    CU_ASSERT_STRING_EQUAL(made(LOG_FORMAT_JSON, "a=\"%s\", ignoring", "\"\n\x01"),
                           "{\"event\":\"x\",\"a\":\"\\\"\\n\\u0001\",\"action\":\"ignoring\"}");
}

/* UTF-8 stays; other bytes do not make a line that JSON cannot have. */
static void test_bytes(void)
{
    json_t *json;

    CU_ASSERT_STRING_EQUAL(made(LOG_FORMAT_LOGFMT, "a=%s",
                                "\u00e4\u4e2d\xff"
                                "b"),
                           "event=x a=\"\u00e4\u4e2d?b\"");
    for (unsigned c = 1; c < 256; c++) {
        char value[] = {'a', (char) c, 'b', '\0'};

        json = json_loads(made(LOG_FORMAT_JSON, "value=\"%s\"", value), 0, NULL);
        CU_ASSERT_PTR_NOT_NULL(json);
        if (c < 0x80)
            CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(json, "value")), value);
        json_decref(json);
    }
}

/* A long value is cut, a field without room is left out; the line stays readable. */
static void test_room(void)
{
    char longer[3 * LOG_VALUE_BYTES];
    json_t *json;

    memset(longer, '\x01', sizeof(longer) - 1); /* six bytes each */
    longer[sizeof(longer) - 1] = '\0';
    json = json_loads(made(LOG_FORMAT_JSON, "a=%s b=%s c=%d", longer, longer, 3), 0, NULL);
    CU_ASSERT_PTR_NOT_NULL_FATAL(json);
    CU_ASSERT_EQUAL(json_string_length(json_object_get(json, "a")), LOG_VALUE_BYTES - 1);
    CU_ASSERT_PTR_NULL(json_object_get(json, "b"));
    CU_ASSERT_EQUAL(json_integer_value(json_object_get(json, "c")), 3);
    CU_ASSERT(json_is_true(json_object_get(json, "cut")));
    json_decref(json);
    (void) made(LOG_FORMAT_LOGFMT, "a=%s b=%s", longer, longer);
    CU_ASSERT_PTR_NOT_NULL(strstr(line.text, " cut=true"));
}

const struct test_case test_cases[] = {TEST(test_logfmt), TEST(test_json), TEST(test_bytes), TEST(test_room),
                                       TEST_END};
