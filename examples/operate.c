/*
 * A program that operates a daemon by its own messages: it prints what each tenant has in the pool, and
 * evicts pages. kvc_call() sends any request of kvcobra.proto; protoc-c makes the code for the messages.
 *
 *     protoc-c --c_out=. --proto_path=$(pkg-config --variable=protodir kvcobra) kvcobra.proto
 *     cc -o operate operate.c kvcobra.pb-c.c -I. $(pkg-config --cflags --libs kvcobra libprotobuf-c)
 *     ./operate [OPERATOR_SOCKET]              the tenants
 *     ./operate [OPERATOR_SOCKET] evict NAME   evicts the pages of a tenant that no process holds
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvcobra-call.h>

#include "kvcobra.pb-c.h"

static int operate_failed(const kvc_client *c, const char *what)
{
    fprintf(stderr, "operate: %s: %s\n", what, c ? kvc_last_error(c) : strerror(errno));
    return EXIT_FAILURE;
}

/* Sends @request, a message of kvcobra.proto, as field @kind of Request. *ret_bytes: free() it. */
static int operate_call(kvc_client *c, uint32_t kind, const ProtobufCMessage *request, uint8_t **ret_bytes,
                        size_t *ret_n_bytes)
{
    kvc_reply reply = {.struct_bytes = sizeof(reply)};
    size_t n = protobuf_c_message_get_packed_size(request);
    uint8_t *bytes = malloc(n + 1);
    int r;

    if (!bytes)
        return -ENOMEM;

    (void) protobuf_c_message_pack(request, bytes);
    r = kvc_call(c, kind, bytes, n, -1, &reply);
    free(bytes);
    if (r < 0)
        return r;

    *ret_bytes = reply.bytes;
    *ret_n_bytes = reply.n_bytes;
    return 0;
}

static int operate_print_tenants(kvc_client *c)
{
    Kvcobra__GetStatus request = KVCOBRA__GET_STATUS__INIT;
    Kvcobra__StatusReply *reply;
    uint8_t *bytes;
    size_t n;

    if (operate_call(c, KVCOBRA__REQUEST__BODY_GET_STATUS, &request.base, &bytes, &n) < 0)
        return operate_failed(c, "cannot get the status");

    reply = kvcobra__status_reply__unpack(NULL, n, bytes);
    free(bytes);
    if (!reply)
        return operate_failed(NULL, "the reply is not valid");

    for (size_t i = 0; i < reply->n_tenants; i++)
        printf("%s: %llu pages, %llu hits, %llu misses\n", reply->tenants[i]->name,
               (unsigned long long) reply->tenants[i]->pages, (unsigned long long) reply->tenants[i]->hits,
               (unsigned long long) reply->tenants[i]->misses);
    kvcobra__status_reply__free_unpacked(reply, NULL);
    return EXIT_SUCCESS;
}

/* A request evicts some pages, so that no client waits long; @more in the reply asks for another one. */
static int operate_evict(kvc_client *c, char *tenant)
{
    Kvcobra__Evict request = KVCOBRA__EVICT__INIT;
    unsigned long long pages = 0;
    int more = 1;

    request.tenant = tenant;
    while (more) {
        Kvcobra__EvictReply *reply;
        uint8_t *bytes;
        size_t n;

        if (operate_call(c, KVCOBRA__REQUEST__BODY_EVICT, &request.base, &bytes, &n) < 0)
            return operate_failed(c, "cannot evict");

        reply = kvcobra__evict_reply__unpack(NULL, n, bytes);
        free(bytes);
        if (!reply)
            return operate_failed(NULL, "the reply is not valid");

        pages += reply->pages;
        more = reply->more;
        kvcobra__evict_reply__free_unpacked(reply, NULL);
    }

    printf("evicted %llu pages of %s\n", pages, tenant);
    return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    int evicts = argc >= 3 && strcmp(argv[argc - 2], "evict") == 0, n_left = argc - (evicts ? 2 : 0), r;
    kvc_client *c = NULL;
    char path[256];

    if (n_left > 2) {
        fprintf(stderr, "usage: operate [OPERATOR_SOCKET] [evict NAME]\n");
        return 2;
    }
    if (kvc_socket_path(KVC_SOCKET_OPERATORS, n_left == 2 ? argv[1] : NULL, path, sizeof(path)) < 0 ||
        kvc_client_new(&c) < 0)
        return operate_failed(NULL, "cannot start");

    if (kvc_client_connect(c, path) < 0)
        r = operate_failed(c, path);
    else
        r = evicts ? operate_evict(c, argv[argc - 1]) : operate_print_tenants(c);
    (void) kvc_client_free(c);
    return r;
}
