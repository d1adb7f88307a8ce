/* Small kernels of one operation or one mistake each, for test_hopper.c. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What kernels read and write. */
struct hopper_case {
    const void *from; /* Input and output of the kernels. */
    uint32_t *out;    /* [128 threads][...] */
    uint32_t offset;  /* of the one element of operand B that is not zero, in bytes */
};

/* offset in bytes of the only element of operand B that is not zero */
void hopper_product(const struct hopper_case *c);

/* out [32] = transpose_8x8(thread's words 2 i, 2 i + 1 as half-words). */
void hopper_transpose(const struct hopper_case *c);

/* out [0] = a word of a copy's destination before it came, [1] after; [2], [3]: threads_any() of nobody, of
 * thread 77. */
void hopper_copy(const struct hopper_case *c);

/* out [0] = a word at the destination of a copy before the copy arrived, [1] after; [2], [3] =
 * threads_any() when no thread, and when only thread 77, passes true. */
enum hopper_mistake {
    HOPPER_NO_ARRIVAL,    /* Each must end the program. */
    HOPPER_EXTRA_ARRIVAL, /* a thread waits for a barrier without arrivals */
    HOPPER_UNEXPECTED_BYTES,
    HOPPER_TOO_FEW_BYTES, /* at the block's end */
    HOPPER_UNALIGNED_COPY,
    HOPPER_COPY_LEFT, /* at the block's end */
    HOPPER_NO_BEGIN,  /* of products */
    HOPPER_NO_FENCE,
    HOPPER_NOT_COMMITTED,
    HOPPER_OPERAND_CHANGED,
    HOPPER_NOT_WAITED,
    HOPPER_ONE_WARP,    /* makes a product alone */
    HOPPER_SWIZZLE,     /* one warp makes a product alone */
    HOPPER_OUTSIDE,     /* a descriptor of other memory */
    HOPPER_HIGH_NIBBLE, /* of pick_bytes() */
    HOPPER_ONE_LANE,    /* at a warp's operation */
    HOPPER_REGISTERS,   /* more registers taken than given */
    HOPPER_MISTAKES
};

void hopper_mistake(enum hopper_mistake which);

#ifdef __cplusplus
}
#endif
