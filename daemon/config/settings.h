/*
 * The table of settings: everything that a person can set on kvcobrad, each setting once.
 *
 * From a row come the default of its member of struct config, the range check, the option --NAME of the
 * command line, the key NAME of the configuration file, whether SIGHUP may change it, the sentence of --help,
 * and the paragraphs of kvcobrad(8) and kvcobrad.conf(5). A new setting is a row in settings_table.c and a
 * member in config.h. kvcobra-cluster has a table of its own (cluster_config.c), for a file alone.
 *
 * The table never checks two settings against each other: config_check() does.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct config;

enum setting_kind {
    SETTING_PATH,   /* const char *; has a '/' in it; "none" is NULL */
    SETTING_TEXT,   /* const char *; "none" is NULL */
    SETTING_BYTES,  /* uint64_t; "65536", "64K", "64M", "2G" */
    SETTING_U64,    /* uint64_t */
    SETTING_U32,    /* uint32_t */
    SETTING_MODE,   /* mode_t; octal */
    SETTING_CHOICE, /* an enum, whose values are numbers of @choices */
    SETTING_LEVEL,  /* int; a level of syslog(3), "info" or "6" */
    SETTING_BOOL,   /* bool; "yes" or "no" */
};

/* Headings of --help and of the man pages. */
enum setting_group {
    SETTINGS_SOCKETS,
    SETTINGS_MEMORY,
    SETTINGS_GPUS,
    SETTINGS_TIER,
    SETTINGS_CLUSTER,
    SETTINGS_TIME,
    SETTINGS_COUNTS,
    SETTINGS_RUNNING,
    SETTINGS_N_GROUPS
};

struct setting {
    const char *name;
    char letter; /* of the short option; 0: none */
    enum setting_kind kind;
    enum setting_group group;
    bool reloads;         /* SIGHUP may change it */
    size_t offset;        /* of the member in struct config, or of that of the table */
    const char *argument; /* name of the value in --help, and its unit: SIZE is bytes, MS milliseconds */
    const char *const *choices; /* ends with NULL */
    uint64_t min, max;          /* of numbers and modes */
    uint64_t number;            /* the default of numbers, modes and choices */
    const char *text;           /* the default of paths and texts; NULL: none */
    const char *default_from;   /* the setting whose value is the default; NULL: @number or @text */
    const char *help;           /* one sentence without its full stop */
    const char *details;        /* further sentences for kvcobrad.conf(5); NULL: none */
};

enum { SETTINGS_MAX = 72 }; /* at least settings_n */

extern const struct setting settings[];
extern const size_t settings_n;

/* The setting of that name among @s[0..@n); NULL: there is none. */
const struct setting *settings_find(const struct setting *s, size_t n, const char *name);

/* "Memory (sizes such as 65536, 64K, 2G)". */
const char *settings_group_title(enum setting_group group);

/* Whether the setting is a number with a maximum, which config_check() and the man page mention. */
bool settings_has_range(const struct setting *s);

#define SETTINGS_VALUE_BYTES 128

/* The default as a person writes it: "4G", "0660", "auto", "none", or @default_from. Returns @ret. */
const char *settings_default(const struct setting *s, char ret[static SETTINGS_VALUE_BYTES]);

/* A number as a person writes it: "64K" for a setting in bytes, else "65536". Returns @ret. */
const char *settings_number(const struct setting *s, uint64_t v, char ret[static SETTINGS_VALUE_BYTES]);

/* The names among which the value is one, a list that ends with NULL; NULL: the value is no name. */
const char *const *settings_choices(const struct setting *s);

/* Sets the defaults of the settings @s[0..@n) in the structure @base; other members stay. */
void settings_init(const struct setting *s, size_t n, void *base);

/* Bytes of the member in struct config. */
size_t settings_value_bytes(const struct setting *s);
