/* Messages as JSON: numbers of all widths, strings, digests, lists, messages in messages. */
#include "tools/command/message_json.h"

#include <stdlib.h>
#include <string.h>

#include "tests/lib/test.h"

const char test_suite[] = "message_json";

static void expect(const ProtobufCMessage *m, const char *want)
{
    json_t *json = message_json(m);
    char *text = json_dumps(json, JSON_COMPACT | JSON_SORT_KEYS);

    CU_ASSERT_PTR_NOT_NULL_FATAL(text);
    CU_ASSERT_STRING_EQUAL(text, want);
    free(text);
    json_decref(json);
}

static void test_fields(void)
{
    Kvcobra__DrainReply drain = KVCOBRA__DRAIN_REPLY__INIT;
    Kvcobra__PinReply pin = KVCOBRA__PIN_REPLY__INIT;
    uint8_t keys[] = {0x00, 0x9a, 0xff};

    expect(&drain.base, "{\"draining\":false,\"held_pages\":0,\"reservations\":0,\"sessions\":0}");
    drain.draining = 1;
    drain.sessions = (uint64_t) 1 << 40;
    expect(&drain.base, "{\"draining\":true,\"held_pages\":0,\"reservations\":0,\"sessions\":1099511627776}");

    pin.keys = (ProtobufCBinaryData){sizeof(keys), keys};
    pin.pages = UINT32_MAX; /* 32 bits: nothing of the next member is read */
    pin.missing = 7;
    expect(&pin.base, "{\"keys\":\"009aff\",\"limit_bytes\":0,\"missing\":7,\"pages\":4294967295,"
                      "\"pinned_bytes\":0}");
}

static void test_lists_and_messages(void)
{
    Kvcobra__ListAliasesReply list = KVCOBRA__LIST_ALIASES_REPLY__INIT;
    Kvcobra__ModelAlias a = KVCOBRA__MODEL_ALIAS__INIT, b = a, *both[] = {&a, &b};
    Kvcobra__StatusReply status = KVCOBRA__STATUS_REPLY__INIT;
    Kvcobra__TenantStatus tenant = KVCOBRA__TENANT_STATUS__INIT, *tenants[] = {&tenant};
    Kvcobra__DeviceStatus device = KVCOBRA__DEVICE_STATUS__INIT, *devices[] = {&device};
    uint8_t one = 1;
    json_t *json, *t;

    expect(&list.base, "{\"aliases\":[]}");
    a.alias = (ProtobufCBinaryData){1, &one};
    list.aliases = both;
    list.n_aliases = 2;
    expect(&list.base, "{\"aliases\":[{\"alias\":\"01\",\"model\":\"\"},{\"alias\":\"\",\"model\":\"\"}]}");

    tenant.name = (char *) "caf\xc3"; /* cut in the middle of a character */
    device.state = KVCOBRA__DEVICE_STATE__DEVICE_READY;
    status.tenants = tenants;
    status.devices = devices;
    status.n_tenants = status.n_devices = 1;
    json = message_json(&status.base);
    t = json_array_get(json_object_get(json, "tenants"), 0);
    CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(t, "name")), "caf\xef\xbf\xbd");
    CU_ASSERT_TRUE(json_is_null(json_object_get(t, "advice"))); /* absent */
    t = json_array_get(json_object_get(json, "devices"), 0);
    CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(t, "state")), "DEVICE_READY");
    json_decref(json);

    device.state = (Kvcobra__DeviceState) 77; /* of a newer daemon */
    json = message_json(&device.base);
    CU_ASSERT_EQUAL(json_integer_value(json_object_get(json, "state")), 77);
    json_decref(json);
}

/* A message of the file with a type that message_json.c would read as 64 bits. */
static void check_types(const ProtobufCMessageDescriptor *d)
{
    for (unsigned i = 0; i < d->n_fields; i++)
        switch (d->fields[i].type) {
        case PROTOBUF_C_TYPE_MESSAGE:
            check_types(d->fields[i].descriptor);
            break;
        case PROTOBUF_C_TYPE_STRING:
        case PROTOBUF_C_TYPE_BYTES:
        case PROTOBUF_C_TYPE_DOUBLE:
        case PROTOBUF_C_TYPE_BOOL:
        case PROTOBUF_C_TYPE_ENUM:
        case PROTOBUF_C_TYPE_SINT32:
        case PROTOBUF_C_TYPE_UINT32:
        case PROTOBUF_C_TYPE_UINT64:
            break;
        default:
            CU_FAIL(d->fields[i].name);
        }
}

static void test_all_types_are_known(void)
{
    check_types(&kvcobra__reply__descriptor);
}

const struct test_case test_cases[] = {TEST(test_fields), TEST(test_lists_and_messages),
                                       TEST(test_all_types_are_known), TEST_END};
