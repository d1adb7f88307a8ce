/* What a measurement was made on, for the reports of benches. */
#pragma once

#ifdef __clang__
#define COMPILER __VERSION__ /* says Clang itself */
#else
#define COMPILER "gcc " __VERSION__
#endif

#define MACHINE_CPU_NAME_BYTES 128

/* The processor's own name; "unknown" where /proc/cpuinfo does not say. */
void machine_cpu_name(char ret[static MACHINE_CPU_NAME_BYTES]);
