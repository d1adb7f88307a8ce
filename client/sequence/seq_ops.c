/* See seq_ops.h. */
#include "client/sequence/seq_ops.h"

int seq_ops_nothing(struct kvc_seq *s)
{
    (void) s;
    return 0;
}

int seq_ops_check_nothing(const struct kvc_seq *s)
{
    (void) s;
    return 0;
}

int seq_ops_append_nothing(struct seq_append_call *call)
{
    (void) call;
    return 0;
}

void seq_ops_drop_nothing(struct kvc_seq *s, size_t n)
{
    (void) s;
    (void) n;
}
