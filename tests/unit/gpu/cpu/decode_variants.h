/* The variants of the loops of gpu/cpu/decode.h that this machine can run. */
#pragma once

#include <stddef.h>

#include "gpu/cpu.h"
#include "gpu/cpu/decode.h"
#include "gpu/cpu/ops.h"
#include "tests/unit/gpu/attend_scene.h"

enum { N_VARIANTS = 5 };

/* NULL if this machine cannot run it. */
static inline const struct decode_ops *variant(size_t i)
{
    static const unsigned masks[N_VARIANTS] = {
        CPU_AVX2,
        CPU_AVX2 | CPU_AVX_VNNI,
        CPU_AVX2 | CPU_AVX512,
        CPU_AVX2 | CPU_AVX512 | CPU_VNNI,
        CPU_AVX2 | CPU_AVX512 | CPU_VNNI | CPU_VBMI,
    };

    return (masks[i] & ~cpu_capabilities()) == 0 ? ops_select(masks[i])->decode : NULL;
}
