/*
 * Values of settings: sets a member of a structure from text, by the row of its setting (settings.h). The
 * command line and the file of kvcobrad, and the file of kvcobra-cluster use it, so a value has one form
 * everywhere.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct errmsg;
struct setting;

/* Copies of texts, which live as long as the structure that has pointers to them. */
struct setting_texts {
    char **list;
    size_t n;
};

void setting_texts_free(struct setting_texts *t);

/**
 * setting_set() - set one setting
 * @base:  the structure that has the member of @s
 * @texts: gets the copy of a text
 *
 * Return: 0; -EINVAL: @e names the setting and the value; -ENOMEM.
 */
int setting_set(const struct setting *s, void *base, struct setting_texts *texts, const char *value,
                struct errmsg *e);

/* "65536", "64K", "64M", "2G" (powers of 1024). Return: 0; -EINVAL; -ERANGE. */
int config_parse_bytes(const char *text, uint64_t *ret);

/* A size such as "64M", between @min and @max. Return: 0; -EINVAL: @e has the value and the range. */
int setting_parse_size(const char *value, uint64_t min, uint64_t max, uint64_t *ret, struct errmsg *e);
