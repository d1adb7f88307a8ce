/* The kernels of gpu/cuda/kernels as functions that run on the CPU (backend/device.h). */
#pragma once

#include <stddef.h>

#include "gpu/cuda/kernels/attend_80.h"
#include "lab/cuda/kernels/f16.h"
#include "gpu/cuda/kernels/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of the parameters of kernel @name; 0: there is no such kernel. */
size_t on_cpu_param_bytes(const char *name);

/* Runs kernel @name; an unknown name ends the program. @parameters: the
 * bytes of its struct, aligned to 16. */
void on_cpu_launch(const char *name, unsigned gx, unsigned gy, unsigned gz, unsigned n_threads,
                   size_t shared_bytes, const void *parameters);

/* Runs @kernel, then kvc_merge, with the given sizes of shared memory. */
void on_cpu_attend(enum attend_kernel kernel, const struct launch_attend *a, unsigned n_items,
                   size_t attend_shared_bytes, size_t merge_shared_bytes);

/* The same with a kernel for compute capability 8.0 and later. */
void on_cpu_attend_80(enum attend_80_kernel kernel, const struct launch_attend *a, unsigned n_items,
                      size_t attend_shared_bytes, size_t merge_shared_bytes);

/* Runs kvc_f16_*, then kvc_f16_merge: the baseline of benches. */
void on_cpu_f16(const struct f16_attend *a, unsigned n_seqs);

#ifdef __cplusplus
}
#endif
