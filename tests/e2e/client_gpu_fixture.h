/*
 * Scenarios of client_fixture.h with sequences on a GPU. The driver is the stand-in, or a real one with
 * TEST_GPU=1 in the environment (tests/gpu/run.sh). No driver survives a fork, so only children open clients
 * on a GPU.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/e2e/client_fixture.h"

bool gpu_is_real(void);

/*
 * Options of a daemon with a pool of @n_extents on the first GPU. A page of 2 layers, 2 heads and 64
 * dimensions has 12 KiB.
 */
struct gpu_args {
    char pool[48], extent[48], spares[48], mover[256];
    const char *args[16]; /* NULL at the end */
};
void gpu_args_init(struct gpu_args *a, unsigned n_extents, unsigned n_preallocated);

/*
 * A scene with a daemon that has two extents on the GPU, @n_preallocated of them preallocated. A text of 512
 * tokens has seven chunks: 64 (c + 2) <= 512.
 */
enum { GPU_PROMPT = 512, GPU_SHARED = 448 };
void gpu_scene_start(struct scene *sc, unsigned n_preallocated);

/* True if no page is held; for scene_wait(). */
bool gpu_nothing_held(const Kvcobra__StatusReply *s);

/* Runs one child in a scene of its own, and waits until nothing is held. */
void gpu_scene_run(bool (*run)(const struct scene *sc, int from_parent, int to_parent));

/* Loads libcuda and never unloads it: a child that becomes another user may be unable to read the file. */
void gpu_driver_load(void);

/* A client on the first GPU, connected, with its model. Asserts. */
struct embedded gpu_scene_client(const struct scene *sc);
/* The same with pages where enum kvc_gpu_pages says. */
struct embedded gpu_scene_client_with(const struct scene *sc, uint32_t pages);
/* A client without the daemon. */
struct embedded gpu_scene_private(const struct scene *sc);

/* As embedded_append(), scene_publish(), scene_attend(), embedded_read(), through device memory. */
int gpu_append(const struct embedded *m, kvc_seq *s, uint32_t text, size_t first, size_t n);
int gpu_publish(const struct embedded *m, kvc_seq *s, uint32_t text, size_t first, size_t n, size_t piece,
                size_t *ret_published);
float *gpu_attend(const struct embedded *m, kvc_seq *s, uint32_t text);
float *gpu_read_back(const struct embedded *m, kvc_seq *s, uint32_t layer, enum kvc_side side, size_t n);

/*
 * True if a sequence of @text equals a private one on the CPU with the first @n_packed tokens
 * in codes: the same bits are read, and attention of the newest token is that of binary64
 * over these, within embedded_nmse_max().
 */
bool gpu_is_like_cpu(const struct scene *sc, const struct embedded *m, kvc_seq *s, uint32_t text,
                     size_t n_packed);

/*
 * Inodes of the pool's extents that process @pid has mapped. One inode in two processes is one memory. Only
 * the stand-in has inodes: with a real driver the number is 0.
 */
size_t gpu_inodes(pid_t pid, unsigned long *inodes, size_t max);
