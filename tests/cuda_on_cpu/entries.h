/* The functions that on_cpu_run() calls in each thread of a kernel: declared in kernels.cpp, defined where
 * the kernel is compiled. */
#pragma once

#define ENTRY_DECLARE(kernel, parameters) void on_cpu_##kernel(const void *arg);
#define ENTRY_DEFINE(kernel, parameters)                                                                     \
    void on_cpu_##kernel(const void *arg)                                                                    \
    {                                                                                                        \
        kernel(*static_cast<const struct parameters *>(arg));                                                \
    }
