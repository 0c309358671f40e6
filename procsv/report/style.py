"""The page's style sheet: light and dark, wide and narrow, screen and paper.

Used by page.py.
"""

STYLE = """
:root{--bg:#fff;--fg:#1c2024;--dim:#60646c;--line:#d9dce1;--kept:#2f9e5b;--redone:#e5a50a;--starting:#4a86d4;--down:#d64545;
--stalled:#9b59b6;--stopped:#b9bec6}
@media(prefers-color-scheme:dark){:root{--bg:#14171a;--fg:#e8eaed;--dim:#9aa0a8;--line:#33383f;--stopped:#565c66}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.2rem;max-width:70rem;background:var(--bg);color:var(--fg);font:16px/1.45 system-ui,sans-serif}
h1{font-size:1.35rem;margin:0;overflow-wrap:anywhere}h2{font-size:1.05rem;margin:2rem 0 .6rem}
.sub,footer{color:var(--dim);overflow-wrap:anywhere;margin:.2rem 0}footer{margin-top:2rem;font-size:.85rem}
.figures{display:flex;flex-wrap:wrap;gap:.6rem 2.2rem;margin:1.2rem 0}
.figures div{display:flex;flex-direction:column}.figures b{font-size:1.6rem;line-height:1.2}.figures span{color:var(--dim);font-size:.85rem}
.chart{position:relative;margin:.4rem 0 .2rem}.chart svg{display:block;width:100%}
.axis{display:flex;justify-content:space-between;color:var(--dim);font-size:.8rem;margin-bottom:.8rem}
rect.kept,.key.kept{fill:var(--kept);background:var(--kept)}rect.redone,.key.redone{fill:var(--redone);background:var(--redone)}
rect.starting,.key.starting{fill:var(--starting);background:var(--starting)}rect.down,.key.down{fill:var(--down);background:var(--down)}
rect.stalled,.key.stalled{fill:var(--stalled);background:var(--stalled)}rect.stopped,.key.stopped{fill:var(--stopped);background:var(--stopped)}
.key{display:inline-block;width:.8em;height:.8em;margin-right:.5em;border-radius:2px}
.marks{position:relative;height:14px}.marks i,.crash{display:inline-block;width:0;height:0;border:6px solid transparent;
border-top:9px solid var(--down);border-bottom:0}.marks i{position:absolute;top:4px;margin-left:-6px}
.grid{stroke:var(--line);stroke-width:1;vector-effect:non-scaling-stroke}
.trained{fill:none;stroke:var(--kept);stroke-width:2;vector-effect:non-scaling-stroke}
.lost{fill:none;stroke:var(--redone);stroke-width:2;stroke-dasharray:4 3;vector-effect:non-scaling-stroke}
.scale{position:absolute;left:0;color:var(--dim);font-size:.8rem;background:var(--bg);padding-right:.3em;transform:translateY(-50%)}
table{border-collapse:collapse;width:100%;font-size:.92rem}
th{text-align:left;font-weight:500;color:var(--dim)}th,td{padding:.25rem .8rem .25rem 0;border-bottom:1px solid var(--line);vertical-align:top}
td{overflow-wrap:anywhere}td:not([data-name=what],[data-name=from],[data-name=ended],[data-name="what it is"]){white-space:nowrap}
@media(max-width:42rem){body{padding:.8rem}.ledger th:last-child,.ledger td:last-child{display:none}
table:not(.ledger) :is(thead){display:none}table:not(.ledger) tr{display:block;border-bottom:1px solid var(--line);padding:.4rem 0}
table:not(.ledger) td{display:flex;gap:.8rem;border:0;padding:.05rem 0}td:has(span:empty){display:none!important}
table:not(.ledger) td::before{content:attr(data-name);color:var(--dim);flex:0 0 6.5rem}}
@media print{:root{--bg:#fff;--fg:#000;--dim:#444;--line:#bbb;--stopped:#b9bec6;font-size:11px}body{font-size:1rem;max-width:none}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}tr,.chart{break-inside:avoid}h2{break-after:avoid}}
"""
