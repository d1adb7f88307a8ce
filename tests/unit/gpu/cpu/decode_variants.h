/* The variants of the loops of gpu/cpu/decode.h that this machine can run. */
#pragma once

#include <stddef.h>

#include "gpu/cpu.h"
#include "gpu/cpu/decode.h"
#include "gpu/cpu/ops.h"
#include "tests/unit/gpu/attend_scene.h"

enum { N_VARIANTS = 7 };

/* NULL if this machine cannot run it. The last one is AMX on tiles in plain C. */
static inline const struct decode_ops *variant(size_t i)
{
    static const unsigned masks[N_VARIANTS - 1] = {
        CPU_AVX2,
        CPU_AVX2 | CPU_AVX_VNNI,
        CPU_AVX2 | CPU_AVX512,
        CPU_AVX2 | CPU_AVX512 | CPU_VNNI,
        CPU_AVX2 | CPU_AVX512 | CPU_VNNI | CPU_VBMI,
        CPU_AVX2 | CPU_AVX512 | CPU_VNNI | CPU_AMX,
    };

    if (i == N_VARIANTS - 1)
        return amx_model() ? amx_model()->decode : NULL;
    return (masks[i] & ~cpu_capabilities()) == 0 ? ops_select(masks[i])->decode : NULL;
}
