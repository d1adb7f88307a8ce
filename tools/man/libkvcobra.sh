#!/bin/sh
# libkvcobra.sh HEADER: the man page libkvcobra(3), an introduction and the public header itself.
set -eu
cat <<'EOF'
.Dd November 21, 2026
.Dt LIBKVCOBRA 3
.Os
.Sh NAME
.Nm libkvcobra
.Nd a compressed, shared key-value cache for language models
.Sh LIBRARY
cc ... $(pkg-config --cflags --libs kvcobra)
.Sh SYNOPSIS
.In kvcobra.h
.Pp
A whole round, errors left out:
.Bd -literal
kvc_client *c; kvc_model *m; kvc_seq *s;

kvc_client_new(&c);
kvc_client_set_gpu(c, &gpu);              /* on a GPU; k, v, q, out are device pointers then */
kvc_client_connect(c, NULL);              /* without it: embedded */
kvc_model_open(c, &id, &m);               /* the table that is active */
kvc_seq_new(m, NULL, 0, &s);
kvc_seq_match(s, tokens, n, &found);      /* what others published */
kvc_seq_append(s, layer, KVC_F32, k, v, n_new);
kvc_seq_attend(s, layer, q, n_q, out);
kvc_seq_commit(s, tokens, n, &published); /* for others to find */
kvc_client_free(c);
.Ed
.Sh THE HEADER
.Bd -literal
EOF
sed -e 's/\\/\\e/g' -e "s/^[.']/\\\\\&&/" "$1"
cat <<'EOF'
.Ed
.Sh SEE ALSO
.Xr kvcobra 1 ,
.Xr kvcobrad 8
EOF
