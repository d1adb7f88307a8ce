/* Cases of a switch over the width of a half-tile, for loops that want it as a constant. */
#pragma once

/* switch (b) with the constant where it is inlined */
#define EACH_NARROW(call)                                                                                    \
    case 1: {                                                                                                \
        enum { B = 1 };                                                                                      \
        call;                                                                                                \
        break;                                                                                               \
    }                                                                                                        \
    case 2: {                                                                                                \
        enum { B = 2 };                                                                                      \
        call;                                                                                                \
        break;                                                                                               \
    }                                                                                                        \
    case 3: {                                                                                                \
        enum { B = 3 };                                                                                      \
        call;                                                                                                \
        break;                                                                                               \
    }                                                                                                        \
    default: {                                                                                               \
        enum { B = 4 };                                                                                      \
        call;                                                                                                \
        break;                                                                                               \
    }
#define EACH_WIDE(call)                                                                                      \
    case 5: {                                                                                                \
        enum { B = 5 };                                                                                      \
        call;                                                                                                \
        break;                                                                                               \
    }                                                                                                        \
    case 6: {                                                                                                \
        enum { B = 6 };                                                                                      \
        call;                                                                                                \
        break;                                                                                               \
    }                                                                                                        \
    case 7: {                                                                                                \
        enum { B = 7 };                                                                                      \
        call;                                                                                                \
        break;                                                                                               \
    }                                                                                                        \
    default: {                                                                                               \
        enum { B = 8 };                                                                                      \
        call;                                                                                                \
        break;                                                                                               \
    }
