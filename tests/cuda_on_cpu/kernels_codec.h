/* The threads of gpu/cuda/kernels/codec.cu, for on_cpu_launch(). */
#pragma once

void on_cpu_encode_keys(const void *plan);
void on_cpu_encode_values(const void *plan);
void on_cpu_decode_page(const void *plan);
