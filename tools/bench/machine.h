/* The compiler and the processor of a measurement, for the reports of benches. */
#pragma once

#ifdef __clang__
#define COMPILER __VERSION__ /* contains "Clang" */
#else
#define COMPILER "gcc " __VERSION__
#endif

#define MACHINE_CPU_NAME_BYTES 128

/* The name of the processor; "unknown" if /proc/cpuinfo lacks it. */
void machine_cpu_name(char ret[static MACHINE_CPU_NAME_BYTES]);
