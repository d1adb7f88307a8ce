/* The terminal of `kvcobra top`; see top_screen.h. */
#include "tools/operate/top_screen.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "tools/command/clock.h"

static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGWINCH};
enum { N_SIGNALS = sizeof(signals) / sizeof(signals[0]) };

/*
 * Handlers, which are those of all threads, write the numbers of signals to a pipe. A signalfd would not do:
 * the threads of the BLAS are older than screen_enter(), so they do not block the signals, and get them.
 */
static struct {
    bool entered;
    struct termios termios;
    struct sigaction actions[N_SIGNALS]; /* before screen_enter() */
    int pipe[2];
} saved;

static void top_screen_on_signal(int number)
{
    const char byte = (char) number;
    int before = errno;

    (void) !write(saved.pipe[1], &byte, 1); /* if it is full, it is readable, too */
    errno = before;
}

bool screen_is_possible(void)
{
    const char *term = getenv("TERM");

    return term && *term && strcmp(term, "dumb") != 0 && isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
}

int screen_enter(void)
{
    const struct sigaction action = {.sa_handler = top_screen_on_signal, .sa_flags = SA_RESTART};
    struct termios t;

    if (tcgetattr(STDIN_FILENO, &saved.termios) < 0 || pipe2(saved.pipe, O_CLOEXEC | O_NONBLOCK) < 0)
        return -errno;

    for (size_t i = 0; i < N_SIGNALS; i++)
        (void) sigaction(signals[i], &action, &saved.actions[i]);
    saved.entered = true;

    /* Keys arrive without Enter and are not echoed; Ctrl-C and Ctrl-Z stay signals. */
    t = saved.termios;
    t.c_lflag &= ~(tcflag_t) (ICANON | ECHO);
    t.c_cc[VMIN] = 0;
    t.c_cc[VTIME] = 0;
    if (tcsetattr(STDIN_FILENO, TCSANOW, &t) < 0 || fputs("\033[?1049h\033[?25l\033[2J", stdout) == EOF ||
        fflush(stdout) == EOF) {
        int r = -errno;

        screen_leave();
        return r;
    }
    return 0;
}

void screen_leave(void)
{
    if (!saved.entered)
        return;

    saved.entered = false;
    fputs("\033[?25h\033[?1049l", stdout);
    (void) fflush(stdout);
    (void) tcsetattr(STDIN_FILENO, TCSANOW, &saved.termios);
    for (size_t i = 0; i < N_SIGNALS; i++)
        (void) sigaction(signals[i], &saved.actions[i], NULL);
    (void) close(saved.pipe[0]);
    (void) close(saved.pipe[1]);
}

void screen_size(unsigned *ret_width, unsigned *ret_height)
{
    struct winsize w = {0};

    (void) ioctl(STDOUT_FILENO, TIOCGWINSZ, &w);
    *ret_width = w.ws_col > 0 ? w.ws_col : 80;
    *ret_height = w.ws_row > 0 ? w.ws_row : 24;
}

/* Erases the rest of each line and of the screen after drawing. The last line has no newline, so nothing
 * scrolls. */
bool screen_draw(const char *text)
{
    fputs("\033[H", stdout);
    while (*text) {
        size_t n = strcspn(text, "\n");

        printf("%.*s\033[K", (int) n, text);
        text += n;
        if (*text == '\n' && *++text != '\0')
            fputs("\r\n", stdout);
    }
    fputs("\033[J", stdout);
    return fflush(stdout) == 0 && !ferror(stdout);
}

/* SCREEN_TIMEOUT: no key. */
static enum screen_event top_screen_read_key(char *ret_key)
{
    char keys[64];
    ssize_t n = read(STDIN_FILENO, keys, sizeof(keys));

    if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN) || (n > 0 && memchr(keys, 'q', (size_t) n)))
        return SCREEN_QUIT;
    if (n <= 0 || keys[0] == '\033') /* cursor keys and the like */
        return SCREEN_TIMEOUT;
    *ret_key = keys[n - 1];
    return SCREEN_KEY;
}

/* After Ctrl-Z the terminal is restored, the process stops, and takes the terminal again after SIGCONT. */
static enum screen_event top_screen_read_signal(void)
{
    char number = 0;

    if (read(saved.pipe[0], &number, 1) != 1)
        return SCREEN_QUIT;
    if (number == SIGTSTP) {
        screen_leave();
        (void) raise(SIGSTOP);
        return screen_enter() < 0 ? SCREEN_QUIT : SCREEN_RESIZED;
    }
    return number == SIGWINCH ? SCREEN_RESIZED : SCREEN_QUIT;
}

enum screen_event screen_wait(double seconds, char *ret_key)
{
    double until = clock_seconds() + seconds, left;

    while ((left = until - clock_seconds()) > 0) {
        struct pollfd p[] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = saved.pipe[0], .events = POLLIN}};
        enum screen_event event = SCREEN_TIMEOUT;

        if (poll(p, 2, (int) (left * 1000) + 1) < 0 && errno != EINTR)
            return SCREEN_QUIT;
        if (p[1].revents)
            event = top_screen_read_signal();
        else if (p[0].revents)
            event = top_screen_read_key(ret_key);
        if (event != SCREEN_TIMEOUT)
            return event;
    }
    return SCREEN_TIMEOUT;
}
