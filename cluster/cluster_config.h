/*
 * The configuration of kvcobra-cluster: one file (ini_file.h), each setting a row of one table (settings.h),
 * from which --help comes too.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "cluster/router.h"
#include "cluster/tls.h"
#include "daemon/config/setting_value.h"
#include "daemon/loop/log.h"

struct errmsg;

#define CLUSTER_CONFIG_SERVERS_MAX 32
#define CLUSTER_CONFIG_PASSWORD_BYTES_MAX 512

struct cluster_config {
    const char *socket_path, *servers_text, *user, *password_file, *key_prefix;
    bool allows_clear_password, has_tls;
    const char *tls_ca_file, *tls_server_name, *tls_cert_file, *tls_key_file;
    uint64_t buffer_bytes, write_bytes_per_s, connect_ms, stall_ms;
    int log_level; /* of syslog(3) */
    enum log_format log_format;
    struct setting_texts texts; /* of the members above */
    /* derived */
    char *password;          /* NULL: none */
    char *tls_key_path;      /* tls_key_file, or the credential of that name */
    struct tls_settings tls; /* has_tls; its texts are those above */
    struct router_server servers[CLUSTER_CONFIG_SERVERS_MAX];
    unsigned n_servers;
};

/**
 * cluster_config_load() - read and check the file
 * @errors: every error is printed here, a line each; NULL: @e alone has the first one
 * @ret: filled, also on failure: the caller calls cluster_config_deinit()
 *
 * Return: 0; -EINVAL with a sentence that names file, line and setting; errno of a file.
 */
int cluster_config_load(const char *path, FILE *errors, struct cluster_config *ret, struct errmsg *e);
void cluster_config_deinit(struct cluster_config *c);

/* A line per setting for --help: its name, what it is, its default. */
void cluster_config_describe(FILE *f);
