"""Short English texts of many kinds, written for this experiment: context of prompts, and text for the perplexity."""

from __future__ import annotations

TEXTS = (
    "The ferry left the harbour an hour late because fog had settled over the channel during the night. Most of the "
    "passengers stayed in the saloon with paper cups of tea, but a few stood at the rail and listened to the horn. "
    "When the lighthouse finally appeared it seemed much closer than anyone had expected, a white stripe above the "
    "grey water. The captain slowed the engines and waited for the pilot boat to come alongside.",
    "Bread dough rises because yeast turns sugar into carbon dioxide, and the stretched network of gluten holds the "
    "gas in place. Warm water speeds this up, while salt slows it down. A baker who wants more flavour lets the dough "
    "rest overnight in a cold room: the yeast works slowly there, and bacteria have time to produce mild acids. In "
    "the oven the gas expands once more before the crust sets.",
    "The committee met on Tuesday to discuss the new cycle lane on Mill Road. Shopkeepers feared that fewer parking "
    "spaces would mean fewer customers, and two of them had brought figures from the previous summer. The engineer "
    "answered that most customers already arrived on foot. After a long debate the members agreed to a trial of six "
    "months, to be followed by a survey and a second vote.",
    "Light from a distant galaxy is stretched on its way to us, because space itself expands while the light is "
    "travelling. Astronomers call the effect redshift, and they measure it by looking for the known lines of hydrogen "
    "in the spectrum. The further away a galaxy is, the larger its redshift tends to be. This simple relation, found "
    "in the 1920s, is still one of the main reasons to think that the universe had a beginning.",
    "My grandmother kept her recipes in a tin box that had once held biscuits. Some were typed, some were cut out of "
    "newspapers, and the best ones were written in pencil on the backs of envelopes. She never measured anything, so "
    "the numbers on the cards were more like suggestions. When I tried to make her plum cake for the first time, it "
    "came out flat, and she laughed and told me what she had always left out.",
    "A hash table stores pairs of keys and values in an array. To find a key, the program computes a number from it "
    "and uses that number as an index. Two different keys may lead to the same place, so every table needs a rule for "
    "such collisions. With a good hash function and enough free space, looking up a value takes about the same time "
    "no matter how many values are stored.",
    "Rainforest soils are often surprisingly poor. Nearly all of the nutrients are held in the living plants, and "
    "whatever falls to the ground is broken down and taken up again within weeks. When the trees are cut and burned, "
    "the ash feeds crops for two or three years, but after that the heavy rain washes the rest away. Farmers must "
    "then move on, or bring fertiliser from far away.",
    "The company reported sales of 412 million dollars in the third quarter, an increase of nine percent over the "
    "year before. Profit fell slightly, to 31 million, since it paid more for shipping and opened two new warehouses. "
    "The chief executive said that she expected prices to ease in the spring. Analysts had predicted a somewhat "
    "larger profit, and the shares lost three percent by the end of the day.",
    "In chess the opening decides less than beginners believe. Most games between amateurs are lost by a piece left "
    "without protection, not by a wrong choice on move six. A useful habit is to ask, before every move, what the "
    "opponent is threatening and which of your own pieces is doing nothing. Players who do this for a month usually "
    "improve more than those who learn ten openings by heart.",
    "The treaty was signed in the spring of 1648, after negotiations that had lasted nearly five years. It ended a "
    "war in which whole regions had lost a third of their people. The delegates met in two towns, because neither "
    "side wanted to sit at a table with certain members of the other. Historians still argue about how much the "
    "agreement changed, but it is often taken as the start of the modern system of states.",
    "To change a bicycle tyre, first turn the bicycle upside down and open the brake. Take the wheel out, let the "
    "remaining air escape, and push the edge of the tyre into the middle of the rim. Then lift one side over the rim "
    "with two levers, starting opposite the valve. Before you put in the new tube, run your fingers along the inside "
    "of the tyre to find whatever caused the puncture.",
    "The old theatre had been closed for thirty years when Elena first went inside. Dust lay on the velvet seats, and "
    "pigeons had built nests in the royal box. Yet when she walked onto the stage and spoke a single line, her voice "
    "came back from the gallery as clear as a bell. She took out her notebook, sat down on an upturned crate, and "
    "began to write a list of everything that would have to be repaired.",
    "Vaccines train the immune system without causing the disease. They contain a harmless part of a virus or a "
    "bacterium, or instructions for making such a part. The body answers by producing antibodies and memory cells. "
    "If the real germ appears later, these cells recognise it and multiply within days, often before the person "
    "notices anything. Some vaccines need a second dose, because the first response fades too quickly.",
    "Dear neighbours, as many of you know, the lift in our building will be replaced during the first two weeks of "
    "March. Workers will be in the stairwell between eight and five, and there will be some noise. If you need help "
    "with shopping or cannot manage the stairs, please write to me before the end of February, and we will find "
    "someone to assist you. Thank you for your patience.",
    "Tides are caused mainly by the moon. Its gravity pulls a little more strongly on the near side of the earth than "
    "on the far side, and the water follows this difference. As the earth turns, each coast passes through two high "
    "tides and two low ones in slightly more than a day. When sun, earth and moon stand in one line, their effects "
    "add up, and the tides are especially strong.",
    "The guitarist tuned her instrument while the others argued about the order of the songs. It was the third night "
    "of the tour, in a town none of them could find on a map, and only forty tickets had been sold. Then the door "
    "opened and the people from the factory came in, still wearing their blue jackets. By the second song everyone "
    "was dancing, and nobody remembered what the argument had been about.",
    "A contract does not always have to be written down. In many countries an agreement between two people is binding "
    "as soon as both have promised something to each other and meant it seriously. Written contracts are useful for "
    "another reason: they make it possible to prove later what was agreed. For some matters, such as the sale of a "
    "house, the law demands writing, and often a notary as well.",
    "Migrating birds find their way with several senses at once. Young starlings seem to be born with a compass "
    "direction, while older birds correct their course when they have been carried off it. They use the position of "
    "the sun, the pattern of stars, the magnetic field of the earth, and near home even smells. Which of these counts "
    "most appears to depend on the species and the weather.",
    "The first subway line of the city was only five kilometres long and had eight stations. Engineers dug most of it "
    "by hand, in clay that slid back as soon as it was moved. On the opening day more than ninety thousand people "
    "wanted to ride, and the police had to close the entrances twice. Within ten years four more lines had been "
    "built, and the horse trams disappeared from the main streets.",
    "Percentages are easy to misread. If a price rises by twenty percent and then falls by twenty percent, it does not "
    "return to where it was: one hundred becomes one hundred and twenty, and a fifth of that is twenty-four, so "
    "ninety-six remain. The same trap waits in news about risks. A risk that doubles may still be tiny, and the "
    "honest way to report it is to say how many people out of ten thousand are affected.",
)
