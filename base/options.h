/*
 * Structs of the public headers that begin with their size, so that programs and libraries of different
 * versions work together. kvcobra.h states the rule for callers; every struct_bytes is read
 * here and nowhere else.
 *
 * @oldest is always the size that the struct had in the first version that had it: a smaller one is a mistake
 * of the caller. @name is the struct's name, for the sentence.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct errmsg;

/* Return: 0; -EINVAL with a sentence (@e may be NULL): @struct_bytes is below @oldest, or above 65536. */
int options_check(size_t struct_bytes, size_t oldest, const char *name, struct errmsg *e);

/**
 * options_read() - a caller's struct as this library knows it
 * @bytes: size of the struct in this library
 * @from:  struct_bytes long, which may be more or less than @bytes
 *
 * Members that the caller does not have become 0.
 *
 * Return: 0; -EINVAL with a sentence: options_check(), or a member that this library does not know is not 0.
 * *ret is untouched on failure.
 */
int options_read(void *ret, size_t bytes, const void *from, size_t oldest, const char *name,
                 struct errmsg *e);

/**
 * options_read_items() - a caller's array as this library knows it
 * @items:    [n] at a distance of the first item's struct_bytes; @n is above 0
 * @ret_copy: [n] at a distance of @bytes, free() it; NULL: @items has that distance already
 *
 * Return: 0; -EINVAL with a sentence: options_read() of an item, or items that differ in struct_bytes;
 * -ENOMEM. *ret_copy is untouched on failure.
 */
int options_read_items(const void *items, size_t n, size_t bytes, size_t oldest, const char *name,
                       void **ret_copy, struct errmsg *e);

/* Copies @from, @bytes long in this library, to the caller's *ret. ret->struct_bytes, set
 * by the caller, keeps its value.
 * Return: 0; -EINVAL: options_check(). */
int options_write(void *ret, const void *from, size_t bytes, size_t oldest, const char *name,
                  struct errmsg *e);
