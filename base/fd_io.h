/*
 * Reads and writes of a whole range: read(2) and write(2) may transfer fewer bytes than requested or be
 * interrupted by a signal; these functions repeat the call until the range is done.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/**
 * fd_pread_all() - read @bytes at @offset into @to
 *
 * Copies out of a memory object with pread(2) instead of a mapping: a hole that another process punches
 * meanwhile reads as zeros, while a load from a mapping could raise SIGBUS.
 *
 * Return: 0; -ENODATA: the file ends inside the range; else the errno of pread(2).
 * On failure @to may be partly written.
 */
int fd_pread_all(int fd, void *to, size_t bytes, uint64_t offset);

/* Writes @bytes at @offset. Return: 0; the errno of pwrite(2), with part of the range written. */
int fd_pwrite_all(int fd, const void *from, size_t bytes, uint64_t offset);

/* Writes @bytes at the file position. Return: 0; the errno of write(2), with part of the range written. */
int fd_write_all(int fd, const void *from, size_t bytes);

/**
 * fd_read_all() - read @bytes at the file position
 * @ret_bytes: bytes that were read, also on failure; fewer than @bytes with return value 0: the end
 *
 * Return: 0; the errno of read(2).
 */
int fd_read_all(int fd, void *to, size_t bytes, size_t *ret_bytes);
