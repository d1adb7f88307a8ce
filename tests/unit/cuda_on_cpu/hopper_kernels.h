/* Small kernels of one operation or one mistake each, for test_hopper.c. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Input and output of the kernels. */
struct hopper_case {
    const void *from; /* aligned to 16 */
    uint32_t *out;    /* [128 threads][...] */
    uint32_t offset;  /* offset in bytes of the only element of operand B that is not zero */
};

/* c [thread][16] = a b by one product of 64 columns, a [r][k] = 1 where k = r % 16, b all zero but a 2 at
 * @offset of it; blocks of 8 k begin 0x400 bytes apart, those of 8 n 0x80. */
void hopper_product(const struct hopper_case *c);

/* out [32] = transpose_8x8(thread's words 2 i, 2 i + 1 as half-words). */
void hopper_transpose(const struct hopper_case *c);

/* out [0] = a word at the destination of a copy before the copy arrived, [1] after; [2], [3] =
 * threads_any() when no thread, and when only thread 77, passes true. */
void hopper_copy(const struct hopper_case *c);

/* Mistakes, each of which must end the program. */
enum hopper_mistake {
    HOPPER_NO_ARRIVAL,    /* a thread waits for a barrier without arrivals */
    HOPPER_EXTRA_ARRIVAL, /* while bytes are missing */
    HOPPER_UNEXPECTED_BYTES,
    HOPPER_TOO_FEW_BYTES, /* at the block's end */
    HOPPER_UNALIGNED_COPY,
    HOPPER_COPY_LEFT, /* at the block's end */
    HOPPER_NO_BEGIN,  /* of products */
    HOPPER_NO_FENCE,
    HOPPER_NOT_COMMITTED,
    HOPPER_OPERAND_CHANGED,
    HOPPER_NOT_WAITED,
    HOPPER_ONE_WARP,    /* one warp makes a product alone */
    HOPPER_SWIZZLE,     /* in the descriptor */
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
