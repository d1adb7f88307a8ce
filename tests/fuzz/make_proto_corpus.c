/*
 * Writes the seeds of fuzz_request, fuzz_reply, fuzz_mover_*, fuzz_page_header, fuzz_page_file and
 * fuzz_index: make_proto_corpus CORPUS_DIRECTORY
 *
 * Fills messages through their descriptors: every body, every field, two items in every repeated field.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/atomic_file.h"
#include "base/errmsg.h"
#include "proto/index.h"
#include "proto/mover_wire.h"
#include "proto/page_file.h"
#include "proto/wire.h"

static int save(const char *root, const char *parser, const char *name, const void *data, size_t bytes)
{
    struct errmsg e = {""};
    char path[4096];

    (void) snprintf(path, sizeof(path), "%s/%s", root, parser);
    (void) mkdir(path, 0777);
    (void) snprintf(path, sizeof(path), "%s/%s/%s", root, parser, name);
    if (atomic_file_write(path, data, bytes, &e) < 0) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    return 0;
}

static void fill(ProtobufCMessage *m);

static void fill_value(const ProtobufCFieldDescriptor *f, void *at)
{
    const ProtobufCMessageDescriptor *d = f->descriptor;

    switch (f->type) {
    case PROTOBUF_C_TYPE_UINT64:
        *(uint64_t *) at = 0x123456789;
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        *(double *) at = 0.125;
        break;
    case PROTOBUF_C_TYPE_SINT32:
        *(int32_t *) at = -28;
        break;
    case PROTOBUF_C_TYPE_STRING:
        *(char **) at = strdup("text");
        break;
    case PROTOBUF_C_TYPE_BYTES:
        *(ProtobufCBinaryData *) at = (ProtobufCBinaryData){16, (uint8_t *) strdup("sixteen bytes ..")};
        break;
    case PROTOBUF_C_TYPE_MESSAGE:
        *(ProtobufCMessage **) at = calloc(1, d->sizeof_message);
        protobuf_c_message_init(d, *(ProtobufCMessage **) at);
        fill(*(ProtobufCMessage **) at);
        break;
    default:
        *(uint32_t *) at = 1;
    }
}

static size_t element_bytes(const ProtobufCFieldDescriptor *f)
{
    switch (f->type) {
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    case PROTOBUF_C_TYPE_MESSAGE:
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_DOUBLE:
    case PROTOBUF_C_TYPE_UINT64:
        return 8;
    default:
        return 4;
    }
}

static void fill(ProtobufCMessage *m)
{
    for (unsigned i = 0; i < m->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &m->descriptor->fields[i];
        uint8_t *at = (uint8_t *) m + f->offset;

        if (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF)
            continue;
        if (f->label == PROTOBUF_C_LABEL_REPEATED) {
            uint8_t *array = calloc(2, element_bytes(f));

            fill_value(f, array);
            fill_value(f, array + element_bytes(f));
            *(size_t *) ((uint8_t *) m + f->quantifier_offset) = 2;
            *(void **) at = array;
        } else {
            fill_value(f, at);
        }
    }
}

static int messages(const char *root, const char *parser, const ProtobufCMessageDescriptor *d)
{
    static uint8_t packet[WIRE_PACKET_BYTES_MAX];
    int r = 0;

    for (unsigned i = 0; i < d->n_fields && r == 0; i++) {
        const ProtobufCFieldDescriptor *f = &d->fields[i];
        ProtobufCMessage *m;

        if (!(f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF))
            continue;
        m = calloc(1, d->sizeof_message);
        protobuf_c_message_init(d, m);
        fill(m);
        fill_value(f, (uint8_t *) m + f->offset);
        *(uint32_t *) ((uint8_t *) m + f->quantifier_offset) = f->id;
        r = save(root, parser, f->name, packet, protobuf_c_message_pack(m, packet));
        protobuf_c_message_free_unpacked(m, NULL);
    }
    return r;
}

static int page(const char *root)
{
    struct page_header h = {.format_version = PAGE_FORMAT_VERSION,
                            .codec_id = PAGE_CODEC_HALF_TILES,
                            .n_heads = 3,
                            .n_tokens = 64,
                            .flags = PAGE_FLAG_FIRST,
                            .payload_bytes = 100000};
    uint8_t b[128];
    int r;

    page_header_store(&h, b);
    r = save(root, "page_header", "first", b, sizeof(b));
    if (r != 0)
        return r;

    h.codec_id = PAGE_CODEC_BYTES;
    h.flags = 0;
    h.first_position = 64;
    page_header_store(&h, b);
    return save(root, "page_header", "bytes", b, sizeof(b));
}

/* One page, sealed with another key than that of fuzz_page_file.c. */
static int page_file(const char *root)
{
    static const struct page_file_keys keys = {.secret = {3}};
    const struct page_file_header h = {.n_heads = 3, .n_pages = 1, .fleet = {1, 2, 3}};
    const struct chunk_key key = {{7}};
    const uint8_t bytes[200] = {9};
    uint8_t file[PAGE_FILE_HEADER_BYTES + CHUNK_KEY_BYTES + SEAL_HEAD_BYTES + sizeof(bytes)];

    page_file_header_store(&h, file);
    page_file_seal(&keys, &key, bytes, sizeof(bytes), file + PAGE_FILE_HEADER_BYTES);
    return save(root, "page_file", "one", file, sizeof(file));
}

static int index_object(const char *root)
{
    static uint8_t object[128 + 4 * 256];
    struct index_writer w;

    index_writer_init(&w, object, sizeof(object));
    for (unsigned i = 0; i < 20; i++) {
        struct chunk_key key = {{(uint8_t) (i % 3), [8] = (uint8_t) i}};
        struct index_hit hit = {i, i % 2, i};

        if (index_insert(&w, &key, &hit) < 0)
            return 1;
    }
    return save(root, "index", "overflowed", object, sizeof(object));
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s CORPUS_DIRECTORY\n", argv[0]);
        return 2;
    }
    return messages(argv[1], "request", &kvcobra__request__descriptor) ||
           messages(argv[1], "reply", &kvcobra__reply__descriptor) ||
           messages(argv[1], "mover_request", &kvcobra__mover_request__descriptor) ||
           messages(argv[1], "mover_reply", &kvcobra__mover_reply__descriptor) || page(argv[1]) ||
           page_file(argv[1]) || index_object(argv[1]);
}
