/*
 * libkvcobra on a GPU: choosing the device, the stream and the memory of pages, waiting, CUDA graphs. All
 * other calls are those of kvcobra.h, and its rules hold here.
 */
#ifndef KVCOBRA_GPU_H
#define KVCOBRA_GPU_H

#include "kvcobra.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- device and stream ---- */

/*
 * Where the pages of a client's sequences are; their newest tokens are on the GPU in both cases.
 *
 * KVC_GPU_PAGES_DEVICE: on the GPU, in a pool of the daemon there. Kernels attend to them.
 *
 * KVC_GPU_PAGES_HOST: in host memory, where clients on the CPU share them, in the daemon's pool there and its
 * slower tiers. The GPU encodes and decodes, for engines that attend to a cache of their own. Appends take
 * every number type, distances, keys after RoPE and interleaved pairs. kvc_seq_read_blocks() writes to blocks
 * on the GPU; numbers of 16 bits may differ from the CPU's in the last bit. KVC_SEQ_PUBLISH_ALL works. These
 * calls fail:
 * kvc_seq_attend() and kvc_seq_replay(), and sequences with KVC_SEQ_REPEATABLE (-EOPNOTSUPP); append and read
 * with pointers that are not memory of this GPU or pinned memory of the host (-EINVAL); every call on a
 * sequence that queues work, while the stream is being captured (-EBUSY). An append that is longer than the
 * 128 tokens that stay exact packs what is due in the same call, so that the rest has room. A commit that
 * publishes waits for the stream; forks and reads wait for copies between the GPU and the host. With a table
 * whose codes no kernel knows the CPU encodes and decodes: appends wait for the stream and find numbers that
 * are not finite at once (-EINVAL), and kvc_model_info.kernel is that of the CPU.
 */
enum kvc_gpu_pages { KVC_GPU_PAGES_DEVICE = 0, KVC_GPU_PAGES_HOST = 1 };

typedef struct kvc_gpu_options {
    size_t struct_bytes; /* sizeof(kvc_gpu_options) */
    /* "GPU-8-4-4-4-12" or "MIG-...", as "nvidia-smi -L" prints it; NULL: the first device */
    const char *uuid;
    /* A CUstream (cudaStream_t) of the device's primary context; NULL: the default stream. It must exist
     * until the client is freed or kvc_client_set_stream() has replaced it. */
    void *stream;
    uint32_t pages;  /* enum kvc_gpu_pages */
    uint32_t unused; /* 0 */
    /* for KVC_GPU_PAGES_HOST: pinned host memory of this client, through which pages move. 1 MiB to 16 GiB,
     * and at least two pages of each table that is used; 0: 64 MiB */
    size_t ring_bytes;
} kvc_gpu_options;

/**
 * kvc_client_set_gpu() - store this client's sequences in GPU memory, or encode them there
 *
 * Call it before kvc_client_connect() and before opening a model. From then on k, v, q and out of append,
 * attend and read are device pointers, and these calls return when their work is queued on the stream. This
 * call loads the CUDA driver: do not make it in a child of a process that has loaded the driver. Do not free
 * the client while its stream is being captured. After a failure the client still works on the CPU.
 *
 * Return: 0, or
 *   -EOPNOTSUPP    no CUDA driver, or an old one, or this build has no kernels for the device
 *   -ENODEV        no such GPU
 *   -EINVAL        an option is not valid
 *   -EBUSY         the client is connected, has models or, for KVC_GPU_PAGES_DEVICE, an executor, or is on
 *                  a GPU already
 *   -ENOMEM, -EIO  errors of the driver; -ENOMEM also: it cannot pin ring_bytes
 */
KVC_EXPORT int kvc_client_set_gpu(kvc_client *c, const kvc_gpu_options *o);

/* Waits for the work queued so far; later calls queue their work on @stream.
 * Return: 0; -EINVAL: the client has no GPU; -EBUSY: a stream is being captured; -EIO: the GPU is lost. */
KVC_EXPORT int kvc_client_set_stream(kvc_client *c, void *stream);

/**
 * kvc_client_synchronize() - wait for all queued work
 *
 * Return: 0, or
 *   -EINVAL  an input of a sequence was NaN or infinite. The sentence names the sequence, which cannot be
 *            published; results of attention to it must not be used
 *   -EBUSY   the stream is being captured
 *   -EIO     the GPU is lost for this process: every later call on this client fails; free the client
 */
KVC_EXPORT int kvc_client_synchronize(kvc_client *c);

/* ---- CUDA graphs ---- */

/**
 * kvc_seq_replay() - prepare a sequence for the launch of a CUDA graph that contains steps of it
 * @n_new: tokens that the graph's appends, single or in batches, add to every layer; 0 for a graph that only
 *         attends or reads
 *
 * While the client's stream is being captured, append, attend and read of a sequence on a GPU are recorded in
 * the graph and change nothing yet. Every other call that would use the sequence's memory fails with -EBUSY.
 * Run a step once before capturing it: memory for attention cannot grow during the capture.
 *
 * Call this before each launch of the graph. It does what an eager append does before it stores: it
 * claims pages, packs chunks that are due and counts the tokens, on the client's stream. Launch the
 * graph next on that stream. The graph uses the captured buffers of k, v, q and out: fill them before
 * each launch. Attention is divided for the number of pages that the sequence had room for during the
 * capture: capture again now and then if the text grows very long.
 *
 * After a failure no token was counted: do not launch the graph.
 *
 * Return: 0, or
 *   -EOPNOTSUPP             the sequence is not on a GPU
 *   -EINVAL                 layers differ in length, or an input of the sequence was not finite
 *   -EBUSY                  the stream is being captured
 *   -EFBIG                  more than 2^31 tokens
 *   -ENOMEM, -EIO, -ESTALE  as kvc_seq_append()
 */
KVC_EXPORT int kvc_seq_replay(kvc_seq *s, size_t n_new);

#ifdef __cplusplus
}
#endif

#endif
