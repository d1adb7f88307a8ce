/* The kernels of gpu/cuda/kernels as functions that run on the CPU (cuda_on_cpu.h). */
#pragma once

#include <stddef.h>

#include "gpu/cuda/kernels/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* kvc_attend, then kvc_merge, with the shared memory that plan.h says. */
void on_cpu_attend(const struct plan_attend *a, unsigned n_seqs, size_t attend_shared_bytes, size_t merge_shared_bytes);

#ifdef __cplusplus
}
#endif
