/* The table of requests: a program without a row of a request, or with one too many, must not serve. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/requests/request_row.h"
#include "daemon/server_parts.h"
#include "tests/lib/test.h"

const char test_suite[] = "dispatch";

/* the rows of the product, as dispatch.c finds them */
extern const struct request_row *const __start_kvc_requests[], *const __stop_kvc_requests[];

static struct dispatch_table table;

static size_t count_rows(void)
{
    return (size_t) (__stop_kvc_requests - __start_kvc_requests);
}

/* The rows of the product with space for one more. */
static const struct request_row **copy_rows(void)
{
    const struct request_row **rows = calloc(count_rows() + 1, sizeof(*rows));

    CU_ASSERT_FATAL(rows != NULL);
    memcpy(rows, __start_kvc_requests, count_rows() * sizeof(*rows));
    return rows;
}

static void test_every_request_has_its_row(void)
{
    const ProtobufCMessageDescriptor *d = &kvcobra__request__descriptor;
    struct errmsg e = {""};
    size_t n = 0;

    CU_ASSERT_EQUAL_FATAL(dispatch_fill(&table, __start_kvc_requests, count_rows(), &e), 0);
    for (unsigned i = 0; i < d->n_fields; i++) {
        const struct request_row *row;

        if (!(d->fields[i].flags & PROTOBUF_C_FIELD_FLAG_ONEOF))
            continue;

        n++;
        row = table.rows[d->fields[i].id];
        CU_ASSERT_FATAL(row != NULL);
        CU_ASSERT_EQUAL((unsigned) row->body, d->fields[i].id);
        CU_ASSERT(row->run != NULL && row->sockets != 0);
    }
    CU_ASSERT_EQUAL(count_rows(), n);
    CU_ASSERT(n > 40);
}

static void test_a_request_without_row(void)
{
    _cleanup_(freep) const struct request_row **rows = copy_rows();

    for (size_t i = 0; i < count_rows(); i++) {
        const struct request_row *left_out = rows[i];
        const ProtobufCFieldDescriptor *f =
            protobuf_c_message_descriptor_get_field(&kvcobra__request__descriptor, (unsigned) left_out->body);
        struct errmsg e = {""};

        rows[i] = rows[count_rows() - 1];
        CU_ASSERT_EQUAL(dispatch_fill(&table, rows, count_rows() - 1, &e), -ENOSYS);
        CU_ASSERT(strstr(e.text, f->name) && strstr(e.text, "has no handler"));
        rows[i] = left_out;
    }
}

static void test_a_request_with_two_rows(void)
{
    _cleanup_(freep) const struct request_row **rows = copy_rows();
    struct request_row second = *rows[0];
    struct errmsg e = {""};

    rows[count_rows()] = &second;
    CU_ASSERT_EQUAL(dispatch_fill(&table, rows, count_rows() + 1, &e), -ENOSYS);
    CU_ASSERT(strstr(e.text, "has two handlers") != NULL);
}

static void test_a_row_without_request(void)
{
    static const unsigned numbers[] = {0, 1, 2, 15, METRICS_TYPES_MAX, 1u << 30}; /* 1, 2: not of the oneof */
    _cleanup_(freep) const struct request_row **rows = copy_rows();

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        struct request_row odd = *rows[0];
        struct errmsg e = {""};

        odd.body = (Kvcobra__Request__BodyCase) numbers[i];
        rows[count_rows()] = &odd;
        CU_ASSERT_EQUAL(dispatch_fill(&table, rows, count_rows() + 1, &e), -ENOSYS);
        CU_ASSERT(strstr(e.text, "is not in kvcobra.proto") != NULL);
    }
}

const struct test_case test_cases[] = {
    TEST(test_every_request_has_its_row),
    TEST(test_a_request_without_row),
    TEST(test_a_request_with_two_rows),
    TEST(test_a_row_without_request),
    TEST_END,
};
