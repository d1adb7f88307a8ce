/*
 * Option and result structs that carry their own size, so that programs and libraries of different versions
 * meet.
 *
 * Read: a caller older than the library gives fewer bytes (the rest is zero: the default), a newer one gives
 * more, which is fine while the part we do not know is zero. Write: the caller gets as much as it has room
 * for; what we do not know is zeroed.
 */
#pragma once

#include <stddef.h>

struct errmsg;

/**
 * options_read() - a caller's struct as this library knows it
 * @bytes:  of the struct here
 * @oldest: of the struct in the first version that had it: fewer is not a struct of ours
 * Return: 0; -EINVAL with a sentence naming @name. *ret is untouched on failure.
 */
int options_read(void *ret, size_t bytes, const void *from, size_t oldest, const char *name,
                 struct errmsg *e);

/* The other way; @ret->struct_bytes, set by the caller, stays. */
int options_write(void *ret, const void *from, size_t bytes, size_t oldest, const char *name,
                  struct errmsg *e);
