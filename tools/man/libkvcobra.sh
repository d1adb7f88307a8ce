#!/bin/sh
# libkvcobra.sh HEADER...: the man page libkvcobra(3), an introduction and the installed headers themselves.
set -eu
cat <<'END'
.Dd November 22, 2026
.Dt LIBKVCOBRA 3
.Os
.Sh NAME
.Nm libkvcobra
.Nd a compressed, shared key-value cache for language models
.Sh LIBRARY
cc ... $(pkg-config --cflags --libs kvcobra)
.Sh SYNOPSIS
END
for header; do
    printf '.In %s\n' "${header##*/}"
done
cat <<'END'
.Pp
The life of one text, without error handling:
.Bd -literal
kvc_client *c; kvc_model *m; kvc_seq *s;

kvc_client_new(&c);
kvc_client_set_gpu(c, &gpu);              /* optional; k, v, q and out are device pointers then */
kvc_client_connect(c, NULL);              /* optional; without it: embedded */
kvc_model_open(c, &id, &m);               /* with the active table */
kvc_seq_new(m, NULL, 0, &s);
kvc_seq_match(s, tokens, n, &found);      /* chunks that other clients published */
kvc_seq_append(s, layer, KVC_F32, k, v, n_new);
kvc_seq_attend(s, layer, q, n_q, out);
kvc_seq_commit(s, tokens, n, &published); /* for other clients */
kvc_client_free(c);
.Ed
END
for header; do
    printf '.Sh THE HEADER %s\n.Bd -literal\n' "${header##*/}"
    sed -e 's/\\/\\e/g' -e "s/^[.']/\\\\\&&/" "$header"
    printf '.Ed\n'
done
cat <<'END'
.Sh SEE ALSO
.Xr kvcobra 1 ,
.Xr kvcobrad 8
END
