/*
 * Scenarios of client_fixture.h with sequences on a GPU, of the driver that is found: the stand-in, or with
 * TEST_GPU=1 in the environment a real one (tests/gpu/run.sh). The process that forks children must not have
 * opened it: clients on a GPU are children's.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/e2e/client_fixture.h"

bool gpu_is_real(void);

/* Options of a daemon with a pool of @n_extents on the first GPU. Pages of 2 layers, 2 heads and 64
 * dimensions: 12 KiB. */
struct gpu_args {
    char pool[48], extent[48], spares[48], mover[256];
    const char *args[16]; /* NULL at the end */
};
void gpu_args_init(struct gpu_args *a, unsigned n_extents, unsigned n_spares);

/* For memory that clients lend: four extents of GPU_LENT_BYTES, none made ahead; @option: "--gpu-lend=yes".
 */
enum { GPU_LENT_BYTES = 2 << 20 };
void gpu_args_lend(struct gpu_args *a, const char *option);

/* Memory of an engine, by the driver's own call: as it comes, not zeros. Not given back. */
void *gpu_engine_memory(const struct embedded *m, size_t bytes);

/* Extents that the client has mapped, but for lent ones. */
size_t gpu_n_extents(const struct embedded *m);

/* A scene of a daemon with two extents on the GPU, @n_spares made ahead. Texts of 512 tokens: 64 (c + 2) <=
 * 512, seven chunks. */
enum { GPU_PROMPT = 512, GPU_SHARED = 448 };
void gpu_scene_start(struct scene *sc, unsigned n_spares);

/* Whether nothing is held; for scene_wait(). */
bool gpu_nobody(const kvc_status *s);

/* One child in a scene of its own, after which nothing is held. */
void gpu_scene_run(bool (*run)(const struct scene *sc, int from_parent, int to_parent));

/* Loads libcuda for good: a child that becomes another user may not be able to read it afterwards. */
void gpu_driver_load(void);

/* A client on the first GPU, connected, with its model. Asserts. */
struct embedded gpu_scene_client(const struct scene *sc);
/* The same without the daemon. */
struct embedded gpu_scene_private(const struct scene *sc);

/* As embedded_append(), scene_publish(), scene_attend(), embedded_read(), through device memory. */
int gpu_append(const struct embedded *m, kvc_seq *s, uint32_t text, size_t first, size_t n);
int gpu_publish(const struct embedded *m, kvc_seq *s, uint32_t text, size_t first, size_t n, size_t piece,
                size_t *ret_published);
float *gpu_attend(const struct embedded *m, kvc_seq *s, uint32_t text);
float *gpu_read_back(const struct embedded *m, kvc_seq *s, uint32_t layer, enum kvc_side side, size_t n);

/*
 * Whether a sequence of @text is what a private one of the CPU would be with the first @n_packed tokens in
 * codes: reads have its bits, attention of the newest token is that of binary64 over what is read, within
 * embedded_nmse_max().
 */
bool gpu_is_like_cpu(const struct scene *sc, const struct embedded *m, kvc_seq *s, uint32_t text,
                     size_t n_packed);

/* Extents of the pool that process @pid has mapped, by inode: one inode in two processes is one memory. The
 * stand-in's only: 0 of a real driver. */
size_t gpu_inodes(pid_t pid, unsigned long *inodes, size_t max);
