/* The page of `kvcobra bench capacity --html`; the numbers are the document of `--json`. */
'use strict';

const hasDisk = numbers.disk_bytes > 0;

const texts = {
    lead(element) {
        document.title = 'What capacity buys – KV-COBRA';
        element.textContent = `${bytes(numbers.memory_bytes)} of memory${hasDisk ? ` and ${bytes(numbers.disk_bytes)} of disk` : ''} for a model ` +
            `that needs ${bytes(numbers.token_bytes)} per token in 16 bits. Fewer bits per number hold more prompts, and more requests find ` +
            'the beginning of theirs.';
    },
    trace(element) {
        write(element, 'Trace: ', ['bdi', cut(numbers.trace, 120)], `, ${grouped(numbers.requests)} requests of ${grouped(numbers.blocks)} blocks ` +
              `of ${numbers.block_tokens} tokens, ${grouped(numbers.different_blocks)} different blocks. Replayed through a kvcobrad by ` +
              `${numbers.clients} clients in turn on ${numbers.cpu}; one page of a small model stands for a block.`);
    },
};

function hits(parent) {
    const points = numbers.points.slice().sort((a, b) => a.bits - b.bits), bits = points.map((p) => p.bits);
    const plot = chart(parent, {label: 'Hits by bits per number', most: 720, height: 360, left: 56, right: 20, top: 16, bottom: 44,
                                x: {domain: [bits[0] / 1.1, bits[bits.length - 1] * 1.1], log: true, title: 'bits per number', ticks: bits},
                                y: {domain: [0, Math.max(numbers.ceiling_percent * 1.1, 1)], title: 'hits, % of blocks'}});
    const series = [['s4', 'a pool without a limit', () => numbers.ceiling_percent], ['s2', 'least recently used, the same size', (p) => p.lru_percent],
                    ['s1', 'kvcobrad', (p) => p.hit_percent], ...(hasDisk ? [['s3', 'kvcobrad with the disk', (p) => p.disk_hit_percent]] : [])];
    const list = legend(parent);
    for (const [name, text, of] of series) {
        line(plot, name, points.map((p) => [p.bits, of(p)]));
        lineKey(list, name, text);
    }
    marks(plot, 's1', 'circle', points.map((p) => [p.bits, p.hit_percent]), 4);
    sayNearest(plot, bits, (i) => `${bits[i]} bits per number: ` + series.map(([, text, of]) => `${text} ${figure(of(points[i]), 3)} %`).join(', '));
}

showPage({texts, tiles: {}, draw: {hits}, missing: (part) => part === 'disk' && !hasDisk ? 'the replay had no disk tier; --disk adds one' : undefined});
