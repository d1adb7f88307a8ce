/* What listing and asking for a table's fit share. */
#pragma once

#include "client/kvcobra.h"
#include "proto/wire.h"

/* @from may be NULL: zeros. Numbers that are not finite, which no kvcobrad sends, are zeros too. */
void fit_read(const Kvcobra__Fit *from, kvc_fit *ret);
