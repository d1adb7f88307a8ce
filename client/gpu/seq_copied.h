/*
 * A sequence of a client on a GPU with pages in host memory, for a table whose codes no kernel knows
 * (device_table_has_kernels()): a sequence of the host (seq_host.h), tail and all, whose caller has its
 * vectors on the GPU. New ones are copied to the host through the ring, in the caller's number type, and
 * encoded there; decoded ones are copied back.
 *
 * So every table works on every GPU. An append waits for the caller's stream, the CPU encodes, and several
 * times as many bytes cross the bus as with kernels.
 */
#pragma once

#include "client/kvcobra.h"

struct kvc_seq;
struct seq_append_call;
struct seq_read_call;

/* seq_ops.init. Return: 0; -EBUSY: the stream is being captured. */
int seq_copied_init(struct kvc_seq *s);

/* seq_ops.append_stage, seq_ops.read_blocks */
int seq_copied_append_stage(const struct seq_append_call *call, const kvc_append_item *item);
int seq_copied_read_blocks(const struct seq_read_call *call);
