/*
 * Which chunks a match needs whose layers attend to a window of the last tokens (kvc_seq_options.window).
 *
 * Keys of chunks are chained, so a chunk is found whether those before it exist or not. A text of n chunks
 * goes on with a token at 64 n, which sees 64 n + 1 - window and later positions. So it needs these chunks:
 *
 *     seq_window_first(window, 64 n) .. n - 1
 *
 * Used by matches, and by look-ups without a sequence.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The chunk of the first position that the token at @position sees. @window: 0 = all positions. */
size_t seq_window_first(uint32_t window, size_t position);

/* Whether a tier has a chunk. Asked at most once for each chunk, in descending order with a window, else in
 * ascending order. */
typedef bool (*seq_window_has)(void *ctx, size_t chunk);

/**
 * seq_window_longest() - the longest beginning of a text that can be matched
 * @first:     chunks that are there already
 * @n_chunks:  of the text
 * @ret_first: the first chunk that is needed besides: those from @first on before it are not
 *
 * Return: its chunks, from @first to @n_chunks.
 */
size_t seq_window_longest(uint32_t window, size_t first, size_t n_chunks, seq_window_has has, void *ctx,
                          size_t *ret_first);
