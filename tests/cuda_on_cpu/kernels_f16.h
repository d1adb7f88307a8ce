/* The threads of gpu/cuda/kernels/f16.cu, for on_cpu_launch(). */
#pragma once

void on_cpu_f16_64(const void *plan);
void on_cpu_f16_128(const void *plan);
void on_cpu_f16_256(const void *plan);
void on_cpu_f16_merge(const void *plan);
